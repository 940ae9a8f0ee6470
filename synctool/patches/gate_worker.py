"""Compiles Python sources and runs none. Started by ``gate`` under the target interpreter, of any Python 3, with nothing but the standard library.

Standard input is what ``git cat-file --batch`` writes: ``<id> blob <size>``, a newline, the content, a newline, again and again.
Standard output: one JSON line for each source that does not compile, then one line with the count.
"""

import gc
import json
import sys
import warnings


def main() -> None:
    gc.disable()  # syntax trees are freed by reference counts
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(5000)
    stream = sys.stdin.buffer
    count = 0
    while True:
        head = stream.readline().split()
        if not head:
            break
        name = head[0].decode()
        if len(head) != 3:
            print(json.dumps({"oid": name, "error": "object is missing", "line": 0}))
            continue
        data = stream.read(int(head[2]))
        stream.read(1)
        count += 1
        try:
            compile(data, name, "exec", dont_inherit=True)
        except SyntaxError as error:
            print(json.dumps({"oid": name, "error": f"{type(error).__name__}: {error.msg}", "line": error.lineno or 0}))
        except (ValueError, RecursionError, MemoryError, OverflowError) as error:
            print(json.dumps({"oid": name, "error": f"{type(error).__name__}: {error}", "line": 0}))
    print(json.dumps({"count": count}))


main()
