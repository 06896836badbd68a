# Training, evaluation and export on CPUs: docker build -t offline-rl . && docker run --rm -it -v "$PWD:/work" offline-rl --help
# torch is the CPU build of PyTorch's own index. g++ is for compiled updates, libegl1 and libosmesa6 are for images.
FROM python:3.12-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ libegl1 libosmesa6 \
 && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY offline_rl offline_rl
COPY policies policies
COPY envs envs
COPY real_robot real_robot
COPY configs configs
COPY datasets datasets
COPY benchmarks/published benchmarks/published
RUN pip install --no-cache-dir ".[export]"
ENV MUJOCO_GL=osmesa
WORKDIR /work
ENTRYPOINT ["offline-rl"]
CMD ["--help"]
