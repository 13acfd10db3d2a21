"""Brig as a service of systemd: installed, started, used, restarted, crashed, stopped, booted again, removed.

Runs as root in the virtual machine, once for each boot. The tests of a class go in the order they are written in: each
goes on from the state that the one before it left.
"""

import json
import os
import pwd
import re
import signal
import sqlite3
import subprocess
import sys
import time
import unittest

BOOT = int(os.environ['BOOT'])
OUT = os.environ['OUT']
LEDGER = '/var/lib/brig/daemon/ledger.db'
# How long anything may take that should take milliseconds; this machine is emulated.
DEADLINE = 60
UNITS = ['brigd.service', 'brig-jailer.service']


def run(*command, deadline=DEADLINE):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=deadline)


def show(unit, name):
    return run('systemctl', 'show', '--value', '--property', name, unit).stdout.strip()


def state(unit):
    return run('systemctl', 'is-active', unit).stdout.strip()


def traces():
    return run('sh', './traces').stdout.splitlines()


def shell(script):
    return run('sh', '-euc', f'. ./installation; {script}', deadline=120)


def as_user(user, *command):
    return run('runuser', '-u', user, '--', *command)


def ledger():
    """Status of all executions that were ever recorded, by id."""
    with sqlite3.connect(f'file:{LEDGER}?mode=ro', uri=True) as connection:
        return dict(connection.execute('SELECT execution, status FROM executions'))


def exposure(unit):
    """The last line of systemd-analyze security: 0 is locked up, 10 is open."""
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

    def eventually(self, holds, what):
        deadline = time.monotonic() + DEADLINE
        while not (found := holds()):
            if time.monotonic() > deadline:
                self.fail(f'{what}, not within {DEADLINE} s: {found!r}')
            time.sleep(0.1)
        return found

    def serves(self):
        """Brig runs, and does what it is for."""
        for unit in UNITS:
            self.assertEqual(state(unit), 'active', unit)
        self.ends(as_user('client', 'brig', 'run', '-q', '--template', 'base', '-c', 'print(6 * 7)'), 0, '42\n')

    def leaves_nothing(self):
        self.eventually(lambda: not traces(), f'nothing is left, but: {traces()}')

    def background(self):
        """A program in a jail that runs until something ends it."""
        command = ['runuser', '-u', 'client', '--', 'brig', 'run', '--template', 'base', '--timeout', '100s']
        command += ['--', 'sh', '-c', '(setsid sleep 100 &); echo up; sleep 100']
        client = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(client.communicate)
        self.addCleanup(client.kill)
        self.assertEqual(client.stdout.readline(), 'up\n')
        return client


class FirstBoot(Case):
    def test_a_fresh_install_starts(self):
        self.ends(shell('install_brig'), 0)
        self.does('systemctl', 'start', 'brigd')
        for unit in UNITS:
            self.assertEqual(state(unit), 'active', unit)

    def test_the_units_have_no_fault(self):
        self.ends(run('systemd-analyze', 'verify', *UNITS), 0, '')

    def test_the_installed_configuration_is_sound(self):
        self.does('/usr/lib/brig/brigd', '--check-config')

    def test_only_a_member_of_the_group_of_clients_can_run_code(self):
        self.does('useradd', '--no-create-home', 'client', '--groups', 'brig-clients')
        self.does('useradd', '--no-create-home', 'stranger')
        self.serves()
        refused = self.ends(as_user('stranger', 'brig', 'run', '--template', 'base', '-c', 'print(1)'), 77, '')
        self.assertIn('brig-clients', refused.stderr)

    def test_the_image_for_data_runs(self):
        code = 'import sqlite3; print(sqlite3.connect(":memory:").execute("select 6 * 7").fetchone())'
        self.ends(as_user('client', 'brig', 'run', '-q', '-c', code), 0, '(42,)\n')

    def test_limits_hold_by_control_groups_of_version_2(self):
        done = as_user('client', 'brig', 'run', '--json', '--template', 'base', '--memory', '64M', '--disk', '1M', '-c',
                       'x = bytearray(300 << 20)')
        self.assertEqual((done.returncode, json.loads(done.stdout)['status']), (137, 'out_of_memory'))
        done = as_user('client', 'brig', 'run', '--json', '--template', 'base', '--timeout', '1s', '--', 'sleep', '100')
        self.assertEqual((done.returncode, json.loads(done.stdout)['status']), (124, 'timeout'))

    def test_brigd_is_a_user_without_privileges(self):
        status = open(f'/proc/{show("brigd.service", "MainPID")}/status').read()
        fields = dict(line.split(':\t', 1) for line in status.splitlines())
        uid = str(pwd.getpwnam('brig').pw_uid)
        self.assertEqual(set(fields['Uid'].split()), {uid})
        for field in ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']:
            self.assertEqual(int(fields[field], 16), 0, field)
        self.assertEqual((fields['NoNewPrivs'], fields['Seccomp']), ('1', '2'))

    def test_what_the_units_may_is_bounded(self):
        scores = {unit: exposure(unit) for unit in UNITS}
        print(f'systemd-analyze security: {scores}')
        self.assertLessEqual(scores['brigd.service'], 2.0)

    def test_a_restart_of_brigd_serves_again_and_keeps_the_ledger(self):
        before = ledger()
        self.assertIn('timeout', before.values())
        self.does('systemctl', 'restart', 'brigd')
        self.serves()
        self.assertEqual(before, {id: status for id, status in ledger().items() if id in before})

    def test_a_restart_of_the_jailer_serves_again(self):
        self.does('systemctl', 'restart', 'brig-jailer')
        self.eventually(lambda: all(state(unit) == 'active' for unit in UNITS), 'both run')
        self.serves()

    def test_a_killed_daemon_comes_back(self):
        for unit in UNITS:
            pid = int(show(unit, 'MainPID'))
            os.kill(pid, signal.SIGKILL)
            self.eventually(lambda: show(unit, 'MainPID') not in (str(pid), '0'), f'{unit} has a new process')
            self.eventually(lambda: all(state(unit) == 'active' for unit in UNITS), 'both run')
            self.serves()

    def test_a_stop_ends_what_runs_and_leaves_nothing(self):
        client = self.background()
        self.assertTrue([line for line in traces() if 'brig-init' in line])
        self.does('systemctl', 'stop', *UNITS)
        self.assertEqual(client.wait(DEADLINE), 130)
        for unit in UNITS:
            self.assertEqual(state(unit), 'inactive', unit)
        self.leaves_nothing()

    def test_without_a_daemon_a_client_is_told_how_to_start_it(self):
        done = self.ends(as_user('client', 'brig', 'run', '--template', 'base', '-c', 'print(1)'), 69, '')
        self.assertIn('systemctl start brigd', done.stderr)

    def test_it_starts_again(self):
        self.does('systemctl', 'start', 'brigd')
        self.serves()

    def test_it_is_enabled_for_the_next_boot(self):
        self.does('systemctl', 'enable', *UNITS)
        with open('/var/lib/lane/ledger.json', 'w') as file:
            json.dump(ledger(), file)
        open(f'{OUT}/reboot', 'w').close()


class SecondBoot(Case):
    def test_an_enabled_service_is_there_after_a_boot(self):
        self.eventually(lambda: all(state(unit) == 'active' for unit in UNITS), 'both run')
        self.serves()

    def test_the_ledger_has_what_was_there_before_the_boot(self):
        with open('/var/lib/lane/ledger.json') as file:
            before = json.load(file)
        self.assertGreater(len(before), 5)
        self.assertEqual(before, {id: status for id, status in ledger().items() if id in before})

    def test_nothing_failed_at_the_boot(self):
        self.assertEqual(run('systemctl', '--failed', '--plain', '--no-legend').stdout, '')

    def test_what_runs_is_not_removed(self):
        self.assertNotEqual(shell('brig_make uninstall').returncode, 0)
        self.serves()

    def test_a_removal_leaves_nothing_but_data(self):
        self.does('systemctl', 'disable', '--now', *UNITS)
        self.leaves_nothing()
        self.ends(shell('brig_make uninstall'), 0)
        self.does('systemctl', 'daemon-reload')
        for unit in UNITS:
            self.assertEqual(show(unit, 'LoadState'), 'not-found')
        found = run('find', '/', '-xdev', '-name', '*brig*', '-not', '-path', '/var/lib/brig*', '-not', '-path', '/var/lib/lane/*')
        self.assertEqual(found.stdout, '')
        self.assertIn('ledger.db', os.listdir('/var/lib/brig/daemon'))

    def test_another_prefix_serves_just_as_well(self):
        self.ends(shell('install_brig PREFIX=/usr/local'), 0)
        self.does('systemctl', 'start', 'brigd')
        self.serves()
        self.assertEqual(run('sh', '-c', 'command -v brig').stdout, '/usr/local/bin/brig\n')
        self.does('systemctl', 'stop', *UNITS)
        self.leaves_nothing()
        self.ends(shell('brig_make uninstall PREFIX=/usr/local'), 0)
        found = run('find', '/usr', '/etc', '-xdev', '-name', '*brig*')
        self.assertEqual(found.stdout, '')


class InOrder(unittest.TestLoader):
    def getTestCaseNames(self, case):
        return [name for name in vars(case) if name.startswith('test_')]


def main():
    case = {1: FirstBoot, 2: SecondBoot}[BOOT]
    suite = InOrder().loadTestsFromTestCase(case)
    result = unittest.TextTestRunner(sys.stdout, verbosity=2, failfast=True).run(suite)
    left = suite.countTestCases() - result.testsRun
    if left:
        print(f'{left} tests did not run, since each goes on from the one before')
    return 0 if result.wasSuccessful() else 1


if __name__ == '__main__':
    sys.exit(main())
