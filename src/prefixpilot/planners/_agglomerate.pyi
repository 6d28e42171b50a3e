from typing_extensions import Buffer

def agglomerate(
    flat: Buffer,
    ends: Buffer,
    tokens: Buffer,
    page_size: float,
    loss: float,
    first: Buffer,
    second: Buffer,
    common: Buffer,
    common_ends: Buffer,
    /,
) -> int: ...
