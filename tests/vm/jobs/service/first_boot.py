"""Brig as a service of systemd: installed, started, used, restarted, crashed, reloaded, stopped, started again."""

import json
import os
import pathlib
import pwd
import signal
import subprocess
import time
import urllib.request

from machine import (CONFIGURATION, DEADLINE, OUT, POLICIES, SERVICES, SOCKETS, Case, client, exposure, ledger, process, run,
                     shell, show, state, traces)


class Start(Case):
    def test_a_fresh_install_starts(self):
        self.ends(shell('install_brig'), 0)
        # Nobody has to have policies of their own.
        os.rmdir(POLICIES)
        self.does('systemctl', 'start', 'brigd')
        self.are(SERVICES + SOCKETS, 'active')

    def test_what_is_started_serves_and_says_so(self):
        status = show('brigd.service', 'StatusText')
        self.does('useradd', '--no-create-home', 'client', '--groups', 'brig-clients')
        self.serves()
        self.assertIn('running', status)
        self.assertIn('sessions', show('brig-jailer.service', 'StatusText'))

    def test_the_units_have_no_fault(self):
        self.ends(run('systemd-analyze', 'verify', 'brig.slice', 'brigd-links.socket', *SERVICES, *SOCKETS), 0, '')

    def test_the_installed_configuration_is_sound(self):
        self.does('/usr/lib/brig/brigd', '--check-config')
        self.does('/usr/lib/brig/brig-jailer', '--check')

    def test_what_the_units_may_is_bounded(self):
        scores = {unit: exposure(unit) for unit in SERVICES}
        print(f'systemd-analyze security: {scores}')
        self.assertLessEqual(scores['brigd.service'], 2.0)

    def test_brigd_is_a_user_without_privileges(self):
        status = pathlib.Path(f'/proc/{process("brigd.service")}/status').read_text()
        fields = dict(line.split(':\t', 1) for line in status.splitlines())
        self.assertEqual(set(fields['Uid'].split()), {str(pwd.getpwnam('brig').pw_uid)})
        for field in ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']:
            self.assertEqual(int(fields[field], 16), 0, field)
        self.assertEqual((fields['NoNewPrivs'], fields['Seccomp']), ('1', '2'))

    def test_all_lies_in_one_slice(self):
        for unit in SERVICES:
            self.assertEqual(show(unit, 'ControlGroup'), f'/brig.slice/{unit}')


class Use(Case):
    def test_who_is_not_in_the_group_of_clients_is_told_so(self):
        self.does('useradd', '--no-create-home', 'stranger')
        command = ['runuser', '-u', 'stranger', '--', 'brig', 'run', '--template', 'base', '-c', 'print(1)']
        refused = self.ends(run(*command), 77, '')
        self.assertIn('brig-clients', refused.stderr)

    def test_the_image_for_data_runs(self):
        code = 'import sqlite3; print(sqlite3.connect(":memory:").execute("select 6 * 7").fetchone())'
        self.ends(client('run', '-q', '-c', code), 0, '(42,)\n')

    def test_limits_hold_by_control_groups_of_version_2(self):
        limits = ['--memory', '64M', '--disk', '1M']
        done = client('run', '--json', '--template', 'base', *limits, '-c', 'x = bytearray(300 << 20)')
        self.assertEqual((done.returncode, json.loads(done.stdout)['status']), (137, 'out_of_memory'))
        done = client('run', '--json', '--template', 'base', '--timeout', '1s', '--', 'sleep', '100')
        self.assertEqual((done.returncode, json.loads(done.stdout)['status']), (124, 'timeout'))

    def test_the_journal_has_the_ids_as_fields(self):
        result = json.loads(client('run', '--json', '--template', 'base', '--', 'true').stdout)
        self.does('journalctl', '--sync')
        found = self.does('journalctl', '--no-pager', '-o', 'json', f'BRIG_EXECUTION={result["execution_id"]}').stdout
        entries = [json.loads(line) for line in found.splitlines()]
        self.assertEqual({entry['BRIG_SESSION'] for entry in entries}, {result['session']['session_id']})
        self.assertEqual({entry['SYSLOG_IDENTIFIER'] for entry in entries}, {'brigd', 'brig-jailer'})
        self.assertEqual({entry['_SYSTEMD_UNIT'] for entry in entries}, set(SERVICES))

    def test_a_zygote_forks_as_the_units_are(self):
        def start():
            command = ['run', '--json', '--template', 'base', '-c', 'print(1)']
            return json.loads(client(*command).stdout)['session']['start']

        start()
        journal = ['journalctl', '--no-pager', '-o', 'cat', '-u', 'brigd']
        self.eventually('a zygote is ready', lambda: 'zygote ready' in self.does(*journal).stdout)
        self.assertIn(start(), ['pool', 'forked'])
        self.assertNotIn('no zygote', self.does(*journal).stdout)


class Restart(Case):
    def test_a_restart_of_brigd_keeps_sessions_and_the_ledger(self):
        before = ledger()
        self.assertIn('timeout', before.values())
        session = self.ends(client('session', 'create', '--template', 'base'), 0).stdout.strip()
        self.ends(client('exec', session, '--', 'sh', '-c', 'echo kept >file'), 0)
        self.does('systemctl', 'restart', 'brigd')
        self.ends(client('exec', '-q', session, '--', 'cat', 'file'), 0, 'kept\n')
        self.ends(client('session', 'close', session), 0)
        self.assertEqual(before, {id: status for id, status in ledger().items() if id in before})

    def test_clients_wait_while_brigd_restarts(self):
        pid = process('brigd.service')
        restart = subprocess.Popen(['systemctl', 'restart', 'brigd'])
        while process('brigd.service') == pid:
            time.sleep(0.01)
        self.serves()
        self.assertEqual(restart.wait(DEADLINE), 0)

    def test_a_restart_of_the_jailer_serves_again(self):
        self.does('systemctl', 'restart', 'brig-jailer')
        self.eventually('all runs', lambda: all(state(unit) == 'active' for unit in SERVICES))
        self.serves()

    def test_what_is_killed_comes_back(self):
        for unit in SERVICES:
            pid = process(unit)
            os.kill(pid, signal.SIGKILL)
            self.replaced(unit, pid)
            self.serves()

    def test_what_hangs_is_ended_and_comes_back(self):
        for unit in SERVICES:
            folder = pathlib.Path(f'/run/systemd/system/{unit}.d')
            folder.mkdir(parents=True)
            (folder / 'watchdog.conf').write_text('[Service]\nWatchdogSec=10s\n')
        self.does('systemctl', 'daemon-reload')
        self.does('systemctl', 'restart', *SERVICES)
        for unit in SERVICES:
            pid = process(unit)
            os.kill(pid, signal.SIGSTOP)
            self.replaced(unit, pid)
            self.serves()
            (pathlib.Path(f'/run/systemd/system/{unit}.d') / 'watchdog.conf').unlink()
        self.does('systemctl', 'daemon-reload')
        self.does('systemctl', 'restart', *SERVICES)


class Reload(Case):
    policy = pathlib.Path(POLICIES) / 'mine.toml'

    def runs_with_it(self):
        return client('run', '-q', '--policy', 'mine', '--template', 'base', '--', 'echo', 'mine')

    def test_a_reload_takes_a_new_policy(self):
        self.policy.parent.mkdir()
        self.ends(self.runs_with_it(), 2)
        self.policy.write_text(pathlib.Path('/usr/share/brig/policies/data.toml').read_text())
        self.does('systemctl', 'reload', 'brigd')
        self.ends(self.runs_with_it(), 0, 'mine\n')

    def test_a_policy_that_is_wrong_changes_nothing_and_is_named(self):
        good = self.policy.read_text()
        self.policy.write_text(good + '\nnonsense = 1\n')
        pid = process('brigd.service')
        self.assertNotEqual(run('systemctl', 'reload', 'brigd').returncode, 0)
        self.eventually('the reason is told', lambda: 'mine.toml' in show('brigd.service', 'StatusText'))
        self.assertEqual(process('brigd.service'), pid)
        self.ends(self.runs_with_it(), 0, 'mine\n')
        self.policy.write_text(good)
        self.does('systemctl', 'reload', 'brigd')
        self.eventually('the reason is gone', lambda: 'mine.toml' not in show('brigd.service', 'StatusText'))

    def test_a_configuration_that_is_wrong_changes_nothing_and_is_named(self):
        self.configure('running = 16', 'running = 0')
        self.assertNotEqual(run('systemctl', 'reload', 'brigd').returncode, 0)
        self.eventually('the reason is told', lambda: 'limits.running' in show('brigd.service', 'StatusText'))
        self.serves()
        self.configure('running = 0', 'running = 16')
        self.does('systemctl', 'reload', 'brigd')

    def test_a_policy_that_is_gone_is_gone_after_a_reload(self):
        self.policy.unlink()
        self.policy.parent.rmdir()
        self.does('systemctl', 'reload', 'brigd')
        self.ends(self.runs_with_it(), 2)


class Links(Case):
    def test_a_link_is_followed_at_a_socket_that_brigd_could_not_make(self):
        self.configure('listen = ""', 'listen = "127.0.0.1:8417"')
        self.does('systemctl', 'enable', 'brigd-links.socket')
        self.does('systemctl', 'stop', 'brigd')
        self.does('systemctl', 'start', 'brigd-links.socket', 'brigd')
        self.ends(client('run', '-q', '--template', 'base', '--', 'sh', '-c', 'echo a,b >linked.csv'), 0)
        artifacts = json.loads(client('artifact', 'list', '-o', 'json').stdout)['artifacts']
        [found] = [artifact['artifact_id'] for artifact in artifacts if artifact['path'] == 'linked.csv']
        link = self.ends(client('artifact', 'link', found), 0).stdout.strip()
        self.assertTrue(link.startswith('http://127.0.0.1:8417/artifact/'), link)
        for _ in range(2):
            self.assertEqual(urllib.request.urlopen(link, timeout=DEADLINE).read(), b'a,b\n')
            self.does('systemctl', 'restart', 'brigd')

    def test_no_links_are_served_where_they_are_not_wanted_any_more(self):
        self.configure('listen = "127.0.0.1:8417"', 'listen = ""')
        self.does('systemctl', 'disable', '--now', 'brigd-links.socket')
        self.does('systemctl', 'restart', 'brigd')
        self.serves()


class Stop(Case):
    def test_a_stop_ends_what_runs_and_leaves_nothing(self):
        self.configure('drain = "30s"', 'drain = "1s"')
        self.does('systemctl', 'reload', 'brigd')
        started = self.background()
        self.assertTrue([line for line in traces() if 'brig-init' in line])
        self.does('systemctl', 'stop', *SERVICES, *SOCKETS)
        self.assertEqual(started.wait(DEADLINE), 70)
        self.are(SERVICES + SOCKETS, 'inactive')
        self.leaves_nothing()

    def test_without_a_daemon_a_client_is_told_how_to_start_it(self):
        done = self.ends(client('run', '--template', 'base', '-c', 'print(1)'), 69, '')
        self.assertIn('systemctl start brigd', done.stderr)

    def test_a_connection_starts_it(self):
        self.does('systemctl', 'start', *SOCKETS)
        self.are(SERVICES, 'inactive')
        self.serves()

    def test_a_stop_of_the_slice_ends_all(self):
        started = self.background()
        self.does('systemctl', 'stop', 'brig.slice')
        self.assertEqual(started.wait(DEADLINE), 70)
        self.are(SERVICES, 'inactive')
        self.does('systemctl', 'stop', *SOCKETS)
        self.leaves_nothing()

    def test_it_starts_again_and_is_enabled_for_the_next_boot(self):
        self.configure('drain = "1s"', 'drain = "30s"')
        self.does('systemctl', 'enable', '--now', *SERVICES)
        self.serves()
        pathlib.Path('/var/lib/lane/ledger.json').write_text(json.dumps(ledger()))
        pathlib.Path(OUT, 'reboot').touch()
