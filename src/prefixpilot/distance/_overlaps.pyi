from typing_extensions import Buffer

def pair_sums(
    first: int,
    stop: int,
    ends: Buffer,
    place: Buffer,
    behind: Buffer,
    holders: Buffer,
    held_at: Buffer,
    unit: int,
    cells: Buffer,
    sums: Buffer,
    /,
) -> int: ...
