from typing_extensions import Buffer

def link_matrix(matrix: Buffer, sizes: Buffer, first: Buffer, second: Buffer, distance: Buffer, /) -> int: ...
def link_pairs(
    ends: Buffer,
    columns: Buffer,
    values: Buffer,
    sizes: Buffer,
    few: int,
    first: Buffer,
    second: Buffer,
    distance: Buffer,
    /,
) -> int: ...
