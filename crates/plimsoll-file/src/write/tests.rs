//! One writer, several, and what somebody else has put in the folder.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use tempfile::{TempDir, tempdir};

use super::*;

/// A folder, and the path of a file in it.
fn place() -> (TempDir, PathBuf) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x");
    (folder, path)
}

fn n_files(folder: &TempDir) -> usize {
    fs::read_dir(folder.path()).unwrap().count()
}

fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_whole(path, |file| file.write_all(contents))
}

#[test]
fn a_failed_write_leaves_the_old_file_and_no_other() {
    let (folder, path) = place();
    write(&path, b"old").unwrap();
    let error = write_whole(&path, |file| {
        file.write_all(b"half of the n")?;
        Err(io::Error::other("the disk is full"))
    });
    assert!(error.unwrap_err().to_string().contains("the disk is full"));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(n_files(&folder), 1);
}

#[test]
fn what_a_killed_writer_left_is_cleared_away_and_what_is_being_written_is_not() {
    let (folder, path) = place();
    let (left, other) = (folder.path().join(".x.1-0.tmp"), folder.path().join(".xy.1-0.tmp"));
    fs::write(&left, b"half").unwrap();
    fs::write(&other, b"another file's").unwrap();
    write_whole(&path, |file| {
        assert!(!left.exists());
        // Somebody else writes the same file meanwhile; the last one to finish has the name.
        write(&path, b"quick").unwrap();
        file.write_all(b"slow")
    })
    .unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"slow");
    assert!(other.exists());
    assert_eq!(n_files(&folder), 2);
}

#[test]
fn a_file_that_is_removed_before_it_is_locked_is_made_again() {
    let (folder, path) = place();
    let temporary = Builder::new().prefix(".x.").suffix(TEMPORARY_END).tempfile_in(folder.path()).unwrap();
    assert!(has_name(temporary.as_file(), temporary.path()));
    // Made and not yet locked: it looks like one that is left over.
    remove_leftovers(&path);
    assert!(!has_name(temporary.as_file(), temporary.path()));
    let locked = create_locked(&path, None).unwrap();
    remove_leftovers(&path);
    assert!(has_name(locked.as_file(), locked.path()));
}

#[test]
fn writers_of_one_file_do_not_disturb_each_other() {
    let (folder, path) = place();
    thread::scope(|scope| {
        for writer in 0..8u8 {
            let path = &path;
            // Short contents, so that as many files as possible are made at the same moment.
            scope.spawn(move || (0..200).for_each(|_| write(path, &[writer; 100]).unwrap()));
        }
    });
    let contents = fs::read(&path).unwrap();
    assert!(contents.len() == 100 && contents.iter().all(|&byte| byte == contents[0]));
    assert_eq!(n_files(&folder), 1);
}

#[test]
fn a_file_that_is_replaced_keeps_its_mode_and_a_new_one_has_that_of_any_new_file() {
    let (_folder, path) = place();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    write(&path, b"new").unwrap();
    let plain = path.with_file_name("plain");
    fs::write(&plain, b"").unwrap();
    assert_eq!(mode(&path), mode(&plain));
    for kept in [0o600, 0o640, 0o666, 0o444] {
        fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
        write_whole(&path, |file| {
            let readers = file.get_ref().metadata()?.mode() & 0o077 & !kept;
            assert_eq!(readers, 0, "nobody can read the new contents who could not read the old");
            file.write_all(b"next")
        })
        .unwrap();
        assert_eq!(mode(&path), kept, "{kept:o}");
    }
}

#[test]
fn nothing_but_a_regular_file_is_replaced() {
    let (folder, path) = place();
    let victim = folder.path().join("victim");
    fs::write(&victim, b"precious").unwrap();
    for target in [victim.clone(), folder.path().join("nothing")] {
        symlink(&target, &path).unwrap();
        for refused in [write(&path, b"new"), check_writable(&path)] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("symbolic link to") && error.contains("remove it"), "{error}");
        }
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    fs::create_dir(&path).unwrap();
    assert!(write(&path, b"new").unwrap_err().to_string().contains("a folder"));
    fs::remove_dir(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(write(&path, b"new").unwrap_err().to_string().contains("a FIFO"));
    assert!(write(Path::new("/dev/null"), b"new").unwrap_err().to_string().contains("a device"));
}

#[test]
fn what_is_planted_under_a_temporary_name_is_neither_waited_for_nor_followed() {
    let (folder, path) = place();
    let victim = folder.path().join("victim");
    fs::write(&victim, b"precious").unwrap();
    let fifo = folder.path().join(".x.a.tmp");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    symlink(&victim, folder.path().join(".x.b.tmp")).unwrap();
    symlink("/dev/zero", folder.path().join(".x.c.tmp")).unwrap();
    fs::create_dir(folder.path().join(".x.d.tmp")).unwrap();
    write(&path, b"new").unwrap();
    assert_eq!(
        (fs::read(&path).unwrap(), fs::read(&victim).unwrap()),
        (b"new".to_vec(), b"precious".to_vec())
    );
    assert_eq!(n_files(&folder), 6, "what is not ours stays");
}

#[test]
fn a_check_leaves_nothing_and_says_what_writing_would() {
    let (folder, path) = place();
    check_writable(&path).unwrap();
    assert_eq!(n_files(&folder), 0);
    assert_eq!(check_writable(&path.join("in no folder")).unwrap_err().kind(), ErrorKind::NotFound);
}
