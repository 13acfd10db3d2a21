//! Ways to the network, to the host's own services, and to other protocols of the kernel.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use brig_tests::attack::{assert_filtered, inside, inside_strict, outside};
use brig_tests::daemon;
use brig_tests::spec::small;

#[test]
fn families_that_reach_the_host_are_closed() {
    let daemon = daemon!();
    // Netlink, packet, AF_ALG, AF_VSOCK, Bluetooth, CAN, XDP, RDS, TIPC and all the rest.
    let attack = "
for family in range(47):
    if family not in (1, 2, 10): print(call(41, family, 1, 0), call(41, family, 2, 0), call(41, family, 5, 0))
";
    let answers = inside(&daemon, attack);
    assert_eq!(answers.len(), 44);
    assert!(
        answers.iter().all(|answer| answer == "ENOSYS ENOSYS ENOSYS"),
        "{answers:?}"
    );
    // Netlink, packet, AF_ALG and AF_VSOCK answer something else without the filter.
    assert_filtered(&daemon, "for family in (16, 17, 38, 40): print(call(41, family, 3, 0))");
}

#[test]
fn raw_sockets_and_other_protocols_are_closed() {
    let daemon = daemon!();
    // Raw ICMP, TCP and any; SCTP, ping, MPTCP, UDP-Lite; raw with a flag. Over IPv6 too.
    let attack = "
for family in (2, 10):
    for kind, protocol in ((3, 1), (3, 6), (3, 255), (1, 132), (2, 1), (1, 262), (2, 136), (3 | 0x80000, 1)):
        print(call(41, family, kind, protocol))
";
    assert_filtered(&daemon, attack);
}

#[test]
fn strict_has_no_internet_sockets_at_all() {
    let daemon = daemon!();
    let attack = "
for family in (2, 10):
    for kind in (1, 2, 3, 0x80001, 0x80801): print(call(41, family, kind, 0))
";
    assert_eq!(inside_strict(&daemon, attack), ["ENOSYS"; 10]);
}

#[test]
fn loopback_works_and_leads_nowhere_else() {
    let daemon = daemon!();
    let attack = "
import socket
server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname())
print('loopback')
def send(family, address): return tried(lambda: socket.socket(family, socket.SOCK_DGRAM).sendto(b'x', address))
for host in ('192.0.2.1', '169.254.169.254', '10.0.0.1', '224.0.0.1', '255.255.255.255'):
    print(send(socket.AF_INET, (host, 9)))
print(send(socket.AF_INET6, ('2001:db8::1', 53)))
print(tried(lambda: socket.create_connection(('192.0.2.1', 80), 2)))
";
    let answers = inside(&daemon, attack);
    assert_eq!((answers[0].as_str(), answers.len()), ("loopback", 8));
    let out_of_reach = |answer: &String| ["ENETUNREACH", "EACCES"].contains(&answer.as_str());
    assert!(answers[1..].iter().all(out_of_reach), "{answers:?}");
    let names = daemon.run(small("import socket\nsocket.getaddrinfo('example.com', 80)"));
    assert_eq!(names.result.error.unwrap().name, "gaierror");
}

#[test]
fn a_service_on_the_hosts_loopback_is_not_there() {
    let daemon = daemon!();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let attack =
        format!("import socket\nprint(tried(lambda: bool(socket.create_connection(('127.0.0.1', {port}), 2))))");
    assert_eq!(inside(&daemon, &attack), ["ECONNREFUSED"]);
    assert_eq!(outside(&attack), ["True"]);
}

#[test]
fn abstract_sockets_of_the_host_are_not_there() {
    let daemon = daemon!();
    let name = format!("brig-test-{}", std::process::id());
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let attack = format!("import socket\nprint(tried(lambda: socket.socket(socket.AF_UNIX).connect('\\0{name}')))");
    assert_eq!(inside(&daemon, &attack), ["ECONNREFUSED"]);
    assert_eq!(outside(&attack), ["None"]);
}
