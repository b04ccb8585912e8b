"""An application that does as the test says: a line each way, one after the other."""

import ctypes
import os
import signal
import socket
import struct
import sys
import threading

CLONE3 = 435
OPTIONS = [b"CQL_VERSION", b"3.0.0"]

last = None


def text(value):
    return struct.pack(">H", len(value)) + value


def dial(port, device=None):
    """Connects, and is let in; the socket that it was before is closed."""
    global last
    last = socket.socket()
    last.settimeout(10)
    if device:
        last.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    try:
        last.connect(("127.0.0.1", int(port)))
    except OSError as error:
        return "refused %d" % error.errno
    body = struct.pack(">H", 1) + b"".join(text(option) for option in OPTIONS)
    last.sendall(struct.pack(">BBhBI", 4, 0, 0, 1, len(body)) + body)
    answer = last.recv(9, socket.MSG_WAITALL)
    assert answer == b"\x84\0\0\0\x02\0\0\0\0", answer
    return "%s:%d %s:%d" % (last.getsockname() + last.getpeername())


def in_thread(port):
    said = []
    thread = threading.Thread(target=lambda: said.append(dial(port)))
    thread.start()
    thread.join()
    return said[0]


def talk(words):
    """So much there, and the same back."""
    last.sendall(words.encode())
    return last.recv(len(words), socket.MSG_WAITALL).decode()


def use(keyspace):
    """The session's keyspace is known from here on."""
    query = b"USE " + keyspace.encode()
    body = struct.pack(">I", len(query)) + query + b"\0\1\0"
    last.sendall(struct.pack(">BBhBI", 4, 0, 1, 7, len(body)) + body)
    header = last.recv(9, socket.MSG_WAITALL)
    length = struct.unpack(">I", header[5:])[0]
    last.recv(length, socket.MSG_WAITALL)
    return "used"


def leave(pid):
    """The parent's part: it ends as its child does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def fork():
    pid = os.fork()
    if pid:
        leave(pid)
    return str(os.getpid())


def fork_as(pid):
    """A child with this very number."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = (ctypes.c_int * 1)(int(pid))
    # struct clone_args: all zero but exit_signal, set_tid and its size.
    args = (ctypes.c_uint64 * 11)()
    args[4] = signal.SIGCHLD
    args[8] = ctypes.addressof(wanted)
    args[9] = 1
    child = libc.syscall(CLONE3, args, ctypes.sizeof(args))
    if child < 0:
        return "refused %d" % ctypes.get_errno()
    if child:
        leave(child)
    return str(os.getpid())


def real_user(uid):
    os.setreuid(int(uid), -1)
    return uid


def rename(name):
    with open("/proc/self/comm", "w") as comm:
        comm.write(name)
    return name


def execute():
    os.execv(sys.executable, [sys.executable, "-S", __file__])


COMMANDS = {
    f.__name__: f
    for f in [dial, in_thread, talk, use, fork, fork_as, real_user, rename, execute]
}

print("%d" % os.getpid(), flush=True)
while True:
    line = os.read(0, 4096)
    if not line:
        break
    name, *arguments = line.decode().split()
    print(COMMANDS[name](*arguments), flush=True)
