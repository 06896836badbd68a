"""How networks that denoise are taught: what they are asked, and how errors count."""
