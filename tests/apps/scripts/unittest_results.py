"""Runs tests of CPython's own suite and writes one JSON line for each event.

usage: unittest_results.py OUTPUT NAME...

A NAME is a suite (test.test_socket) or a test's id. Lines are {"start": id} and
{"done": id, "result": "ok" | "skip" | "fail" | "error" | ...}. The lines are
written as things happen, so that a run that hangs tells where.
"""

import json
import sys
import unittest

from test import support


class Results(unittest.TestResult):
    def __init__(self, output):
        super().__init__()
        self.output = output
        self.worst = "ok"

    def write(self, **line):
        self.output.write(json.dumps(line) + "\n")
        self.output.flush()

    def startTest(self, test):
        super().startTest(test)
        self.worst = "ok"
        self.write(start=test.id())

    def stopTest(self, test):
        super().stopTest(test)
        self.write(done=test.id(), result=self.worst)

    def explain(self, test, error):
        print(test.id(), file=sys.stderr)
        print(self._exc_info_to_string(error, test), file=sys.stderr, flush=True)

    def addError(self, test, error):
        self.worst = "error"
        self.explain(test, error)
        # A class or module that cannot be set up has no startTest.
        if not isinstance(test, unittest.TestCase):
            self.write(done=str(test), result="error")

    def addFailure(self, test, error):
        self.worst = "fail"
        self.explain(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.worst = "fail"
            self.explain(subtest, error)

    def addSkip(self, test, reason):
        if isinstance(test, unittest.TestCase):
            self.worst = "skip"
        else:
            self.write(done=str(test), result="skip")

    def addExpectedFailure(self, test, error):
        self.worst = "expected failure"

    def addUnexpectedSuccess(self, test):
        self.worst = "unexpected success"


# VSOCK is no TCP, and in a virtual machine whose host does not answer the tests
# of it hang.
LEFT_OUT = ("VSOCK",)


def without_left_out(suite):
    kept = unittest.TestSuite()
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            kept.addTest(without_left_out(test))
        elif not any(word in test.id() for word in LEFT_OUT):
            kept.addTest(test)
    return kept


def main():
    # As regrtest does by default: nothing that needs the outside network or much of
    # the machine. test_socketserver calls the loopback a network.
    loopback_only = all(name.startswith("test.test_socketserver") for name in sys.argv[2:])
    support.use_resources = {"network": None} if loopback_only else {}
    suite = without_left_out(unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:]))
    with open(sys.argv[1], "w", encoding="utf-8") as output:
        results = Results(output)
        suite.run(results)
        results.write(end=results.testsRun)


if __name__ == "__main__":
    main()
