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


def main():
    # As regrtest does by default: nothing that needs the outside network or much of the machine.
    support.use_resources = {}
    suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:])
    with open(sys.argv[1], "w", encoding="utf-8") as output:
        results = Results(output)
        suite.run(results)
        results.write(end=results.testsRun)


if __name__ == "__main__":
    main()
