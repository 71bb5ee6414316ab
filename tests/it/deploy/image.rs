//! The container image: its Dockerfile, and its root file system, made by the script that the Dockerfile calls and run
//! read-only, as the image's user, with nothing else in sight.

use std::{fs, net::SocketAddr, os::unix::fs::MetadataExt, path::Path, process::Command};

use budget_tests::{
    daemon, ports,
    process::{Gone, Process},
};

use super::{BOUND, deploy, finish, succeed, tool};

#[test]
fn the_dockerfile_pleases_its_linter() {
    let mut hadolint = tool("hadolint");
    hadolint.arg(deploy().join("image/Dockerfile"));
    succeed(hadolint);

    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("Dockerfile");
    fs::write(&broken, "FROM debian:latest\nRUN cd / && apt-get install curl\n").unwrap();
    let mut hadolint = tool("hadolint");
    hadolint.arg(broken);
    assert!(!finish(hadolint).status.success(), "the judge is blind");
}

/// What it copies must be made as the test below makes it.
#[test]
fn the_dockerfile_makes_the_root_by_the_script_and_leaves_root_behind() {
    let text = fs::read_to_string(deploy().join("image/Dockerfile")).unwrap();
    let last = text.split("\nFROM ").last().unwrap();
    assert!(last.starts_with("scratch\nCOPY --from=build /rootfs /\n"), "{last}");
    assert!(last.contains("\nUSER 65532:65532\n"), "{last}");
    assert!(text.contains("deploy/image/rootfs target/release/budgetd /rootfs\n"), "{text}");
}

/// A command in the image: its root read-only, its user, no other file of this machine. As root that is done directly;
/// others need a kernel that lets them make user namespaces.
fn contained(root: &Path, arguments: &[&str]) -> Command {
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && shift && exec \"$@\"";
    let is_root = rustix::process::getuid().is_root();
    let mut command = Command::new("unshare");
    command.args(if is_root { &["--mount"][..] } else { &["--mount", "--user", "--map-root-user"] });
    command.args(["sh", "-euc", script, "sh"]).arg(root);
    command.arg("chroot").args(is_root.then_some("--userspec=65532:65532")).arg(root);
    command.arg("/usr/bin/budgetd").args(arguments);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

#[test]
fn the_daemon_serves_from_the_image_s_root() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let mut rootfs = Command::new(deploy().join("image/rootfs"));
    rootfs.arg(daemon::binary()).arg(&root);
    succeed(rootfs);
    // The directory of a temporary directory is its owner's alone.
    let mut open = Command::new("chmod");
    open.arg("0755").arg(directory.path());
    succeed(open);

    let version = succeed(contained(&root, &["--version"]));
    assert_eq!(version, daemon::run(&["--version"]).stdout);
    let written = finish(contained(&root, &["serve", "--ready-file", "/ready", "--listen", "unix:/tmp/b"]));
    assert!(!written.status.success() && written.stderr.contains("ead-only"), "{written:?}");

    let (mut served, grpc) = serve(&root);
    if rustix::process::getuid().is_root() {
        let owner = fs::metadata(format!("/proc/{}", served.id())).unwrap();
        assert_eq!((owner.uid(), owner.gid()), (65_532, 65_532), "its process is not root");
    }
    let endpoint = format!("http://{grpc}");
    let asked = succeed(contained(&root, &["reserve", "payments", "--endpoint", &endpoint]));
    assert!(asked.contains("admitted"), "{asked}");
    // What compose asks whether it is healthy.
    succeed(contained(&root, &["status", "--timeout", "2s", "--endpoint", &endpoint]));
    served.terminate();
    assert!(served.wait(BOUND).success(), "{}", served.tail());
}

fn serve(root: &Path) -> (Process, SocketAddr) {
    for _ in 0..5 {
        let [grpc, http] = [ports::pick(), ports::pick()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let arguments = ["serve", "--listen", &grpc.to_string(), "--http", &http.to_string()];
        let mut process = Process::spawn("budgetd in its image", contained(root, &arguments));
        match process.wait_until(BOUND, |_| std::net::TcpStream::connect(http).ok()) {
            Ok(_) => return (process, grpc),
            Err(Gone::Exited(_)) if process.logged("in use") => {}
            Err(gone) => panic!("{gone:?}; {}", process.tail()),
        }
    }
    panic!("somebody else took a port five times");
}

#[test]
fn a_root_has_what_the_binary_needs_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let mut rootfs = Command::new(deploy().join("image/rootfs"));
    rootfs.arg(daemon::binary()).arg(&root);
    succeed(rootfs);
    let mut list = Command::new("find");
    list.arg(&root).args(["-type", "f", "-printf", "%P\n"]);
    let files = succeed(list);
    for file in files.lines() {
        let expected = ["usr/bin/budgetd", "etc/passwd", "etc/group"].contains(&file) || file.contains(".so");
        assert!(expected, "{file}");
    }
    assert!(files.lines().count() < 12, "{files}");

    for arguments in [&["/no/such/binary"][..], &[]] {
        let mut broken = Command::new(deploy().join("image/rootfs"));
        broken.args(arguments).arg(directory.path().join("other"));
        let finished = finish(broken);
        assert!(!finished.status.success() && finished.stderr.starts_with("rootfs: "), "{finished:?}");
    }
}
