"""Export of large tensors between processes of one host and one user, through memory that both have mapped.

All other data stays on the connection, which also carries the locations of exported tensors. Either end may do without:
an end that cannot share memory, or is configured not to (`CommOptions.shared_memory`), does not set the flag in its
hello. An end that fails to open the other's memory continues without it, and needs no message for that.

    hello       an end that can share memory sets SHARES (16) in its flags; if both do, each sends one MEMORY
    MEMORY      a message without tensors and with request 0, whose map has
                  process   id of this process
                  board     file descriptor of its ring
                  nonce     64 hexadecimal digits: the first 32 bytes of the ring
                  bytes     maximum bytes exported to this end at a time
                  unread    maximum bytes of these in transit at a time; if none are, a message may have more
    LENT        a message with tensors in shared memory; its request is that of the enclosed message, and its map has
                  kind      kind of the enclosed message
                  header    header of the enclosed message
                  lent      for each exported tensor [index, dtype, shape, bytes, place], where index is its position
                            among all tensors, ascending; the others follow the frame's header, as in any message
                  place     [segment, file descriptor, bytes of the segment, offset, slot, turn]

Rings and segments are memory files (`memfd`, named "aioflow") of the process that created them, sealed so that they
cannot shrink or grow and other processes cannot write to them. The other end opens them as
`/proc/PROCESS/fd/DESCRIPTOR`, which the system permits within one user. It checks that the file is a memory file, of
its own user, sealed against shrinking, and of the announced size. The nonce proves that the process with this id is the
other end of the connection: only these two can know it, one by the connection and one by the ring. From then on an
open directory stands for the process, which a later process with the same id does not inherit.

    ring        two pages: nonce (32 bytes) · ready (1) · zeros (31) · arrived (256) · returned (256) · zeros

`ready` becomes 1 once this end has opened the other's ring; the other end exports tensors only after that. Each
exported tensor has a slot, 0 to 255, and the turn of that slot, which counts 1, 2 … 127, 1 …. On arrival, the receiver
writes the turn to `arrived[slot]` of its own ring, and when the array is freed to `returned[slot]`. Turn + 128 means
that a forked child may still hold the array, so that the memory must not be used again. Each byte is written by one end
and read by the other.

A tensor of a REPLY is a fetch, which its caller may modify: it is mapped privately, so that writes stay in this
process.

A segment is the exportable bytes and one more page, whose first byte becomes 1 once the segment is no longer used: then
receivers that keep it mapped for later tensors unmap it. A process never reuses the number of a segment.

Strings, bools (not every byte is a valid one) and small tensors are never exported.
"""
