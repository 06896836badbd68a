"""Control table of the X series: addresses and units of a servo's registers.

Addresses from 64 on are in RAM, which is lost at power-off. Lower addresses are in EEPROM, which
can be written only while torque is off. Source: emanual.robotis.com/docs/en/dxl/x (XM430-W350 and
related models).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple


class Item(NamedTuple):
    """Register of a servo. The comments below give the unit of one count."""

    address: int
    size: int  # bytes
    signed: bool = False

    def pack(self, value: int) -> bytes:
        """Encode a value, little endian. Raises OverflowError if it does not fit."""
        return value.to_bytes(self.size, "little", signed=self.signed)

    def unpack(self, data: bytes) -> int:
        return int.from_bytes(data, "little", signed=self.signed)


MODEL = Item(0, 2)
FIRMWARE = Item(6, 1)
ID = Item(7, 1)
BAUD = Item(8, 1)
RETURN_DELAY = Item(9, 1)  # 2 us
DRIVE_MODE = Item(10, 1)
OPERATING_MODE = Item(11, 1)
HOMING_OFFSET = Item(20, 4, signed=True)
TEMPERATURE_LIMIT = Item(31, 1)  # degrees Celsius
MAX_VOLTAGE = Item(32, 2)  # 0.1 V
MIN_VOLTAGE = Item(34, 2)
CURRENT_LIMIT = Item(38, 2)
VELOCITY_LIMIT = Item(44, 4)
MAX_POSITION = Item(48, 4)
MIN_POSITION = Item(52, 4)
SHUTDOWN = Item(63, 1)
TORQUE_ENABLE = Item(64, 1)
STATUS_LEVEL = Item(68, 1)
HARDWARE_ERROR = Item(70, 1)
POSITION_P_GAIN = Item(84, 2)
BUS_WATCHDOG = Item(98, 1)  # 20 ms; 0: off, 255: fired
GOAL_PWM = Item(100, 2, signed=True)
GOAL_CURRENT = Item(102, 2, signed=True)
GOAL_VELOCITY = Item(104, 4, signed=True)
PROFILE_ACCELERATION = Item(108, 4)
PROFILE_VELOCITY = Item(112, 4)
GOAL_POSITION = Item(116, 4, signed=True)
REALTIME_TICK = Item(120, 2)  # ms, 0 to 32767
MOVING = Item(122, 1)
PRESENT_CURRENT = Item(126, 2, signed=True)  # on XL430 and XC430 this is the load, 0.1 %
PRESENT_VELOCITY = Item(128, 4, signed=True)
PRESENT_POSITION = Item(132, 4, signed=True)
PRESENT_VOLTAGE = Item(144, 2)  # 0.1 V
PRESENT_TEMPERATURE = Item(146, 1)  # degrees Celsius

RAM = 64  # the first address that is not EEPROM
TICKS = 4096  # ticks per revolution
CENTER = 2048
RAD = 2 * math.pi / TICKS  # rad per count of a position
RAD_S = 0.229 * 2 * math.pi / 60  # rad/s per count of a velocity
RAD_S2 = 214.577 * 2 * math.pi / 3600  # rad/s² per count of a profile acceleration
TICK_PERIOD = 32768  # ms; after this time the realtime tick starts again at 0
WATCHDOG_S = 0.02  # s per count of the bus watchdog
WATCHDOG_TRIPPED = 255  # value of the bus watchdog once it has fired
POSITION_MODE = 3
MODES = {  # names of the operating modes
    0: "current",
    1: "velocity",
    3: "position",
    4: "extended position",
    5: "current-based position",
    16: "PWM",
}
# bits of the drive mode
REVERSE = 0x01  # the servo counts in the other direction
TORQUE_BY_GOAL = 0x08  # a new goal switches torque on


@dataclass(frozen=True)
class Model:
    """Servo model: the values in which the models of the series differ."""

    name: str
    number: int  # model number, as in register 0
    current_a: float | None  # A per count of current; None: register 126 is the load
    torque_per_a: float = 0.0  # N m per A: stall torque divided by stall current, nominal voltage
    indirect_address: int = 168
    indirect_data: int = 224
    watchdog_firmware: int = 38  # first firmware with a bus watchdog


MODELS = {
    model.number: model
    for model in (
        Model("XL430-W250", 1060, None),
        Model("XM430-W350", 1020, 2.69e-3, torque_per_a=4.1 / 2.3),
        Model("XM430-W210", 1030, 2.69e-3, torque_per_a=3.0 / 2.3),
        Model("XM540-W270", 1120, 2.69e-3, torque_per_a=10.6 / 4.4),
        Model("XL330-M077", 1190, 1e-3, indirect_data=208, watchdog_firmware=0),
        Model("XL330-M288", 1200, 1e-3, indirect_data=208, watchdog_firmware=0),
        Model("XC330-T288", 1220, 1e-3, indirect_data=208, watchdog_firmware=0),
    )
}
