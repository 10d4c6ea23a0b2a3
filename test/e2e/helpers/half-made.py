# Peers that never finish: half-made.py ADDRESS COUNT keeps COUNT silent connections there and COUNT slow ones, which
# send a byte ten times a second. ADDRESS is HOST:PORT, stream:PATH or packet:PATH (a Unix socket of packets, as shm
# has). One that is thrown out comes back. Prints a line when all have been there.
import resource, select, socket, sys, time

address, count = sys.argv[1], int(sys.argv[2])
REST = 0.01
resource.setrlimit(resource.RLIMIT_NOFILE, (min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)


def come():
    kind, _, path = address.partition(':')
    if kind == 'stream' or kind == 'packet':
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if kind == 'stream' else socket.SOCK_SEQPACKET)
        place = path
    else:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        place = (kind, int(path))
    made.setblocking(False)
    try:
        made.connect(place)
    except BlockingIOError:
        pass
    except OSError:
        made.close()
        return None
    return made


# The first bytes of an MPA request (RFC 5044 §7.1); of NBD's client flags anything will do.
REQUEST = b'MPA ID Req Frame'
poll = select.poll()
peers = {}  # by descriptor: socket, slow, bytes sent
absent = [False] * count + [True] * count
seen = 0
spoken = 0.0
while True:
    for slow in absent[:]:
        made = come()
        if made is None:
            break
        absent.remove(slow)
        seen += 1
        if seen == 2 * count:
            print('there', flush=True)
        peers[made.fileno()] = [made, slow, 0]
        poll.register(made, select.POLLIN | select.POLLRDHUP)
    for fd, events in poll.poll(1000 * REST):
        made, slow, _ = peers[fd]
        try:
            gone = made.recv(4096) == b''
        except BlockingIOError:
            continue
        except OSError:
            gone = True
        if gone:
            poll.unregister(fd)
            made.close()
            del peers[fd]
            absent.append(slow)
    if time.monotonic() - spoken < 0.1:
        continue
    spoken = time.monotonic()
    for made, slow, sent in peers.values():
        if slow:
            try:
                made.send(REQUEST[sent % len(REQUEST):][:1])
            except OSError:
                pass
            peers[made.fileno()][2] = sent + 1
