//! Memory that this process can still use: the system's available memory and the limits of control groups.

use std::path::{Component, Path, PathBuf};

/// Returns how many bytes of memory this process can still use: the memory that is available without swapping, or what
/// is left below the limit of its control group (a container has one) if that is less. `None` if neither is known.
pub fn available_bytes() -> Option<u64> {
    available_under(Path::new("/"))
}

/// Implements [`available_bytes`] on the `/proc` and `/sys` below the directory `root`, so that tests can use made-up
/// files.
fn available_under(root: &Path) -> Option<u64> {
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| group_left(root, line));
    meminfo(root).into_iter().chain(limits).min()
}

fn meminfo(root: &Path) -> Option<u64> {
    let text = read(&root.join("proc/meminfo"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Names of the files in which Linux states a control group's memory limit and memory usage, for one version of control
/// groups.
struct Files {
    /// Directories, relative to the root directory, where Linux may mount the hierarchy of control groups.
    mounts: &'static [&'static str],
    limit: &'static str,
    used: &'static str,
    /// Keys in `memory.stat` for the bytes of cached files. Cached files count as used memory, but the system frees
    /// them when memory is needed.
    cached: [&'static str; 2],
}

const V1: Files = Files {
    mounts: &["sys/fs/cgroup/memory"],
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_active_file", "total_inactive_file"],
};
const V2: Files = Files {
    mounts: &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
    limit: "memory.max",
    used: "memory.current",
    cached: ["active_file", "inactive_file"],
};

/// Returns the bytes that a process's control group may still use: the least that is left below the limits of the group
/// and all groups above it. `line` is the `ID:CONTROLLERS:PATH` line of `/proc/self/cgroup` that names the group. In a
/// container that sees only its own part of the hierarchy, the path may not exist; then the top of the hierarchy is the
/// container's own group.
fn group_left(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let files = match controllers {
        "" => V2,
        names if names.split(',').any(|name| name == "memory") => V1,
        _ => return None,
    };
    let normal = |part: &Component<'_>| matches!(part, Component::Normal(_));
    let own: PathBuf = Path::new(path).components().filter(normal).collect();
    let groups = files
        .mounts
        .iter()
        .flat_map(|mount| own.ancestors().map(move |group| root.join(mount).join(group)));
    groups.filter_map(|group| left(&group, &files)).min()
}

/// Returns the bytes that one control group may still use below its memory limit; `None` if the group has no limit.
fn left(group: &Path, files: &Files) -> Option<u64> {
    let number = |name: &str| read(&group.join(name))?.trim().parse::<u64>().ok();
    let limit = number(files.limit)?;
    let stat = read(&group.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        files.cached.contains(&name).then(|| bytes.trim().parse::<u64>().ok()).flatten()
    });
    let used = number(files.used).unwrap_or(0).saturating_sub(cached.sum());
    Some(limit.saturating_sub(used))
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Temporary root directory of a test, with made-up files of `/proc` and `/sys`.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Root {
            let root = Root(std::env::temp_dir().join(format!("{}-{name}", std::process::id())));
            root.set("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    1000 kB\n");
            files.iter().for_each(|(path, text)| root.set(path, text));
            root
        }

        fn set(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn available(&self) -> Option<u64> {
            available_under(&self.0)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn without_a_limit_it_is_what_the_system_says() {
        let root = Root::new(
            "none",
            &[("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", "max\n")],
        );
        assert_eq!(root.available(), Some(1_024_000));
        assert_eq!(available_under(Path::new("/no/such/root")), None);
    }

    #[test]
    fn the_tightest_group_of_version_2_counts() {
        let root = Root::new(
            "v2",
            &[
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/b/memory.max", "900000\n"),
                ("sys/fs/cgroup/a/b/memory.current", "300000\n"),
                ("sys/fs/cgroup/a/memory.max", "700000\n"),
                ("sys/fs/cgroup/a/memory.current", "500000\n"),
            ],
        );
        assert_eq!(root.available(), Some(200_000));
        root.set(
            "sys/fs/cgroup/a/memory.stat",
            "anon 7\nactive_file 100000\ninactive_file 50000\n",
        );
        assert_eq!(root.available(), Some(350_000), "cached files can be given back");
        root.set("sys/fs/cgroup/a/b/memory.current", "950000\n");
        assert_eq!(root.available(), Some(0));
    }

    #[test]
    fn a_container_that_sees_only_itself_finds_its_limit_at_the_top() {
        for cgroup in ["0::/\n", "0::/docker/0123\n", "0::/../..\n"] {
            let root = Root::new(
                "top",
                &[("proc/self/cgroup", cgroup), ("sys/fs/cgroup/memory.max", "5000\n")],
            );
            assert_eq!(root.available(), Some(5000), "{cgroup}");
        }
    }

    #[test]
    fn version_1_has_other_names() {
        let root = Root::new(
            "v1",
            &[
                ("proc/self/cgroup", "7:cpu,cpuacct:/x\n5:hugetlb,memory:/x\n1:name=systemd:/x\n"),
                ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "600000\n"),
                ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "500000\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                (
                    "sys/fs/cgroup/memory/x/memory.stat",
                    "inactive_file 1\ntotal_inactive_file 30000\n",
                ),
            ],
        );
        assert_eq!(root.available(), Some(130_000));
    }
}
