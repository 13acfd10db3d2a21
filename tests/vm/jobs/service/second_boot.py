"""Brig after a boot of the machine: it is there, has what it had, and can be removed."""

import json
import os
import pathlib

from machine import SERVICES, SOCKETS, Case, ledger, run, shell, show


class SecondBoot(Case):
    def test_what_is_enabled_is_there_after_a_boot(self):
        self.are(SERVICES + SOCKETS, 'active')
        self.serves()

    def test_the_ledger_has_what_was_there_before_the_boot(self):
        before = json.loads(pathlib.Path('/var/lib/lane/ledger.json').read_text())
        self.assertGreater(len(before), 10)
        self.assertEqual(before, {id: status for id, status in ledger().items() if id in before})

    def test_nothing_failed_at_the_boot(self):
        self.ends(run('systemctl', '--failed', '--plain', '--no-legend'), 0, '')

    def test_what_runs_is_not_removed(self):
        self.assertNotEqual(shell('brig_make uninstall').returncode, 0)
        self.serves()

    def test_a_removal_leaves_nothing_but_data(self):
        self.does('systemctl', 'disable', '--now', *SERVICES, *SOCKETS)
        self.does('systemctl', 'stop', 'brig.slice')
        self.leaves_nothing()
        self.ends(shell('brig_make uninstall'), 0)
        self.does('systemctl', 'daemon-reload')
        for unit in SERVICES + SOCKETS:
            self.assertEqual(show(unit, 'LoadState'), 'not-found')
        self.nothing_below('/usr', '/etc')
        self.assertIn('ledger.db', os.listdir('/var/lib/brig/daemon'))

    def test_another_prefix_serves_just_as_well(self):
        self.ends(shell('install_brig PREFIX=/usr/local'), 0)
        self.does('systemctl', 'start', 'brigd')
        self.ends(run('sh', '-c', 'command -v brig'), 0, '/usr/local/bin/brig\n')
        self.serves()
        self.does('systemctl', 'reload', 'brigd')
        self.does('systemctl', 'stop', *SERVICES, *SOCKETS)
        self.leaves_nothing()
        self.ends(shell('brig_make uninstall PREFIX=/usr/local'), 0)
        self.nothing_below('/usr', '/etc')

    def nothing_below(self, *folders):
        self.ends(run('find', *folders, '-xdev', '-name', '*brig*'), 0, '')
