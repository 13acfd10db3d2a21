"""What the tests of the units share. Run as a program, runs the tests of this boot.

The tests of a class go in the order they are written in: each goes on from the state that the one before it left, so that
the first failure ends them.
"""

import importlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import unittest

OUT = os.environ['OUT']
LEDGER = '/var/lib/brig/daemon/ledger.db'
CONFIGURATION = '/etc/brig/brigd.toml'
POLICIES = '/etc/brig/policies'
# How long anything may take that should take milliseconds; this machine is emulated.
DEADLINE = 90
SERVICES = ['brigd.service', 'brig-jailer.service']
SOCKETS = ['brigd.socket', 'brig-jailer.socket']


def run(*command, deadline=DEADLINE):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=deadline)


def shell(script):
    """A shell script that may use what `installation` defines."""
    return run('sh', '-euc', f'. ./installation; {script}', deadline=4 * DEADLINE)


def client(*arguments):
    """The command brig, as a member of the group of clients."""
    return run('runuser', '-u', 'client', '--', 'brig', *arguments)


def show(unit, name):
    return run('systemctl', 'show', '--value', '--property', name, unit).stdout.strip()


def state(unit):
    return run('systemctl', 'is-active', unit).stdout.strip()


def process(unit):
    return int(show(unit, 'MainPID'))


def traces():
    return run('sh', './traces').stdout.splitlines()


def ledger():
    """Status of all executions that were ever recorded, by id."""
    connection = sqlite3.connect(f'file:{LEDGER}?mode=ro', uri=True)
    try:
        return dict(connection.execute('SELECT execution, status FROM executions'))
    finally:
        connection.close()


def exposure(unit):
    """What systemd-analyze security says: 0 is locked up, 10 is open."""
    text = run('systemd-analyze', 'security', '--no-pager', unit).stdout
    return float(re.search(r'exposure level for \S+: ([0-9.]+)', text).group(1))


class Case(unittest.TestCase):
    maxDiff = None

    def ends(self, done, code, stdout=None):
        """What a command must have ended with."""
        self.assertEqual(done.returncode, code, f'{done.args}\n{done.stdout}\n{done.stderr}')
        if stdout is not None:
            self.assertEqual(done.stdout, stdout)
        return done

    def does(self, *command):
        return self.ends(run(*command), 0)

    def eventually(self, what, holds):
        deadline = time.monotonic() + DEADLINE
        while not holds():
            if time.monotonic() > deadline:
                self.fail(f'{what}, not within {DEADLINE} s')
            time.sleep(0.1)

    def are(self, units, wanted):
        self.assertEqual({unit: state(unit) for unit in units}, dict.fromkeys(units, wanted))

    def serves(self):
        """Brig runs, and does what it is for."""
        self.ends(client('run', '-q', '--template', 'base', '-c', 'print(6 * 7)'), 0, '42\n')
        self.are(SERVICES, 'active')

    def leaves_nothing(self):
        try:
            self.eventually('nothing is left', lambda: not traces())
        except AssertionError as error:
            self.fail(f'{error}: {traces()}')

    def replaced(self, unit, pid):
        """Waits until a unit has another process."""
        self.eventually(f'{unit} has a new process', lambda: process(unit) not in (0, pid))
        self.eventually('all runs', lambda: all(state(unit) == 'active' for unit in SERVICES))

    def background(self):
        """A program in a jail that runs until something ends it."""
        command = ['runuser', '-u', 'client', '--', 'brig', 'run', '--template', 'base', '--timeout', '200s', '--',
                   'sh', '-c', '(setsid sleep 200 &); echo up; sleep 200']
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   text=True)
        self.addCleanup(started.communicate)
        self.addCleanup(started.kill)
        self.assertEqual(started.stdout.readline(), 'up\n')
        return started

    def configure(self, old, new):
        with open(CONFIGURATION) as file:
            text = file.read()
        self.assertIn(old, text)
        with open(CONFIGURATION, 'w') as file:
            file.write(text.replace(old, new))


def main():
    module = importlib.import_module({'1': 'first_boot', '2': 'second_boot'}[os.environ['BOOT']])
    cases = [case for case in vars(module).values() if getattr(case, '__module__', None) == module.__name__]
    suite = unittest.TestSuite(case(name) for case in cases for name in vars(case) if name.startswith('test_'))
    planned = suite.countTestCases()
    result = unittest.TextTestRunner(sys.stdout, verbosity=2, failfast=True).run(suite)
    if planned > result.testsRun:
        print(f'{planned - result.testsRun} tests did not run: each goes on from the one before it')
    return 0 if result.wasSuccessful() and result.testsRun == planned else 1


if __name__ == '__main__':
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
