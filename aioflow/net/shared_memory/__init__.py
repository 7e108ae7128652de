"""Large tensors between processes of one host and one user, through memory that both have mapped.

Everything else stays on the connection, which also says where the tensors are. Either end may do without: whoever
cannot, or is told not to (`CommOptions.shared_memory`), says so in its hello, and whoever turns out not to reach the
other's memory goes on without a word.

    hello       each end that can sets SHARES (16) in its flags; where both did, each sends one MEMORY
    MEMORY      a message without tensors and of request 0, with the map
                  process   the number of this process
                  board     the file descriptor of its board
                  nonce     64 hexadecimal digits: the first 32 bytes of the board
                  bytes     what the peer may have lent to this end at a time
                  unread    and how much of that may be on its way at a time, beside a first message
    LENT        a message of which some tensors are in memory; its request is that of the message in it, and its map
                  kind      the kind of that message
                  header    its header
                  lent      for each of those tensors [index, dtype, shape, bytes, place], where index is its place
                            among all tensors, in growing order; the others follow the frame's header, as in any message
                  place     [segment, file descriptor, bytes of the segment, offset, slot, turn]

Boards and segments are files in memory (`memfd`, named "aioflow") of the process that made them, sealed so that they
neither shrink nor grow and nobody else can write to them. The other end opens them by `/proc/PROCESS/fd/DESCRIPTOR`,
for which the system asks that both are of one user; it checks that the file is such a file, of its own user, sealed
against shrinking, and of the size that was said. That the process of this number is the one at the other end of the
connection is known by the nonce, which only the two can know: by the connection, and by the board. From then on a
directory that was opened stands for the process, which a later process of the same number does not inherit.

    board       two pages: nonce (32 bytes) · ready (1) · zeros (31) · arrived (256) · returned (256) · zeros

`ready` is 1 once this end has opened the other's board: only then does that end lend to it. Each tensor that is lent
has a slot, 0 to 255, and the turn of that slot, which counts 1, 2 … 127, 1 …. When it has come, its receiver writes the
turn to `arrived[slot]` of its own board, and when nobody holds the array any more to `returned[slot]`; turn + 128 means
that a forked child still may, so that the memory must not be used again. Each byte is written by one end and read by
the other.

What comes in a REPLY is a fetch, whose taker may write to it: that is mapped so that what is written stays here.

A segment is the bytes that can be lent and one page more, of which the first byte is 1 once it is used no more: then
who has kept it mapped for the next tensor lets go of it. Numbers of segments are never used again by a process.

Strings, bools (not every byte is one) and small tensors are never lent.
"""
