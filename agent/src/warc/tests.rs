//! Tests [`Store`]s in temporary folders, and reads their files with the `read` module.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tempfile::TempDir;
use tokio::time::Instant;

use super::read::{WarcRecord, records};
use super::store::GONE;
use super::*;
use crate::config::StoreConfig;
use crate::disk::folder::FolderError;
use crate::testing::{files, store_config as config, stored_lines as lines};

fn open(folder: &TempDir) -> Store {
    Store::open(&config(folder.path()), "Harbin 1").unwrap()
}

fn answered(url: &str) -> AnsweredRequest {
    AnsweredRequest {
        url: url.to_owned(),
        at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_341_086_250),
        address: Some(IpAddr::from([127, 0, 0, 1])),
        request: b"GET / HTTP/1.1\r\nhost: a.cn\r\n\r\n".to_vec(),
        head: b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n".to_vec(),
        status: 200,
        content_type: Some("text/html".to_owned()),
    }
}

async fn record(recorder: &Recorder, answered: AnsweredRequest, body: &[u8]) {
    let mut recording = recorder.begin(answered);
    for piece in body.chunks(16 << 10) {
        recording.push(piece).await;
        recording.count(piece.len());
    }
    recording.end(None);
}

fn all_records(folder: &Path) -> Vec<WarcRecord> {
    files(folder, ".warc.gz").iter().flat_map(|file| records(file).unwrap()).collect()
}

#[tokio::test]
async fn a_response_and_its_request_are_two_records_and_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let recorder = store.recorder("a.cn", Some(7));
    let mut recording = recorder.begin(answered("http://a.cn/x?y=1"));
    recording.found_at(3);
    recording.push(b"<html>").await;
    recording.count(600);
    recording.end(None);
    drop(recording);
    recorder.stored().await.unwrap();
    store.close().await;

    let file = files(folder.path(), ".warc.gz").pop().unwrap();
    let name = file.file_name().unwrap().to_str().unwrap().to_owned();
    let (first, last) = (name.strip_prefix("landfall-Harbin-1-").unwrap(), "-00000.warc.gz");
    assert!(first.strip_suffix(last).is_some_and(|stamp| stamp.len() == 14), "{name}");
    let [info, answer, request] = records(&file).unwrap().try_into().unwrap();
    let kind = |record: &WarcRecord| record.field("WARC-Type").unwrap().to_owned();
    assert_eq!([kind(&info), kind(&answer), kind(&request)], ["warcinfo", "response", "request"]);
    assert_eq!((info.offset, info.field("WARC-Filename")), (0, Some(name.as_str())));
    assert!(info.block.starts_with(b"software: landfall-agent/"));
    for record in [&answer, &request] {
        assert_eq!(record.field("WARC-Target-URI"), Some("http://a.cn/x?y=1"));
        assert_eq!(record.field("WARC-Date"), Some("2026-11-22T09:51:26.250Z"));
        assert_eq!(record.field("WARC-IP-Address"), Some("127.0.0.1"));
        assert_eq!(record.field("WARC-Warcinfo-ID"), info.field("WARC-Record-ID"));
        assert_eq!(record.field("WARC-Truncated"), None);
        assert!(record.field("WARC-Block-Digest").is_some());
    }
    assert_eq!(request.field("WARC-Concurrent-To"), answer.field("WARC-Record-ID"));
    assert_eq!(request.block, b"GET / HTTP/1.1\r\nhost: a.cn\r\n\r\n");
    assert_eq!(answer.block, b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>");
    let digest = answer.field("WARC-Payload-Digest").unwrap().to_owned();
    assert_eq!(digest, recording::digest_of(b"<html>"));
    let line = ResponseLine {
        url: "http://a.cn/x?y=1".to_owned(),
        status: 200,
        fetched_at: "2026-11-22T09:51:26.250Z".to_owned(),
        ip: Some("127.0.0.1".to_owned()),
        content_type: Some("text/html".to_owned()),
        bytes: 600,
        stored_bytes: 6,
        digest,
        truncated: None,
        warc: name,
        offset: answer.offset,
        length: answer.length,
        site: "a.cn".to_owned(),
        task: Some(7),
        depth: Some(3),
    };
    assert_eq!(lines(folder.path()), std::slice::from_ref(&line));
    // Every line has all fields. Fields that do not apply are null.
    let keys = |line: &ResponseLine| match serde_json::to_value(line).unwrap() {
        serde_json::Value::Object(fields) => fields.into_iter().map(|(key, _)| key).collect::<Vec<_>>(),
        _ => Vec::new(),
    };
    assert_eq!(
        keys(&ResponseLine { ip: None, content_type: None, task: None, depth: None, ..line.clone() }),
        keys(&line)
    );
    assert_eq!(keys(&line).len(), 15);
}

#[tokio::test]
async fn an_incomplete_body_is_stored_with_its_cause() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let recorder = store.recorder("a.cn", None);
    let late = Instant::now();
    let early = late + Duration::from_secs(3600);
    let mut unread = recorder.begin(answered("http://a.cn/unread"));
    unread.push(b"the beginning").await;
    drop(unread);
    for (path, until, end) in [
        ("timeout", early, Some(Some(Truncated::Time))),
        ("broken", early, Some(Some(Truncated::Disconnect))),
        ("whole", early, Some(None)),
        ("out-of-time", late, None),
        ("stopped", early, None),
    ] {
        let mut recording = recorder.begin(answered(&format!("http://a.cn/{path}")));
        recording.push(b"the beginning").await;
        recording.wait(until);
        if let Some(end) = end {
            recording.end(end);
        }
    }
    recorder.synced().await.unwrap();
    store.close().await;
    let read: Vec<(String, Option<String>)> = all_records(folder.path())
        .iter()
        .filter(|record| record.field("WARC-Type") == Some("response"))
        .map(|record| {
            let url = record.field("WARC-Target-URI").unwrap();
            (url["http://a.cn/".len()..].to_owned(), record.field("WARC-Truncated").map(str::to_owned))
        })
        .collect();
    let read: Vec<(&str, Option<&str>)> = read.iter().map(|(path, why)| (path.as_str(), why.as_deref())).collect();
    let expected = [
        ("unread", Some("length")),
        ("timeout", Some("time")),
        ("broken", Some("disconnect")),
        ("whole", None),
        ("out-of-time", Some("time")),
        ("stopped", Some("unspecified")),
    ];
    assert_eq!(read, expected);
    assert!(lines(folder.path()).iter().zip(expected).all(|(line, (_, why))| line.truncated.as_deref() == why));
}

#[tokio::test]
async fn a_full_file_is_closed_and_another_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&StoreConfig { max_file_bytes: 3000, ..config(folder.path()) }, "a").unwrap();
    let recorder = store.recorder("a.cn", None);
    for number in 0..20 {
        record(&recorder, answered(&format!("http://a.cn/{number}")), b"x").await;
        recorder.stored().await.unwrap();
        let opened = files(folder.path(), ".open");
        assert!(opened.len() == 1 && fs::metadata(&opened[0]).unwrap().len() < 3000 + 1500);
    }
    store.close().await;
    assert_eq!(files(folder.path(), ".open"), Vec::<PathBuf>::new());
    let closed = files(folder.path(), ".warc.gz");
    assert!(closed.len() > 3, "{closed:?}");
    for (number, file) in closed.iter().enumerate() {
        assert!(file.to_str().unwrap().ends_with(&format!("-{number:05}.warc.gz")));
        assert_eq!(records(file).unwrap()[0].field("WARC-Type"), Some("warcinfo"));
    }
    assert_eq!(lines(folder.path()).len(), 20);
    for line in lines(folder.path()) {
        let all = records(&folder.path().join(&line.warc)).unwrap();
        let record = all.iter().find(|record| record.offset == line.offset).unwrap();
        assert_eq!((record.field("WARC-Target-URI"), record.length), (Some(line.url.as_str()), line.length));
    }
}

/// The folder that a killed process leaves behind, with one unfinished file of `exchanges`
/// exchanges.
async fn killed(exchanges: u32) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let recorder = store.recorder("a.cn", None);
    for number in 0..exchanges {
        record(&recorder, answered(&format!("http://a.cn/{number}")), &[b'x'; 3000]).await;
    }
    recorder.stored().await.unwrap();
    let left = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), left.path().join(entry.file_name())).unwrap();
    }
    store.close().await;
    left
}

#[tokio::test]
async fn a_file_left_by_a_crash_is_cut_to_whole_records_and_lines() {
    let whole = killed(5).await;
    let file = files(whole.path(), ".open").pop().unwrap();
    let (bytes, all) = (fs::read(&file).unwrap(), records(&file).unwrap());
    let text = fs::read_to_string(files(whole.path(), ".jsonl").pop().unwrap()).unwrap();
    let last = text.lines().last().unwrap().len() + 1;
    let (warc_ends, text_ends) = (
        [0, 5, 100, bytes.len() / 2, bytes.len() - 700, bytes.len() - 1, bytes.len()],
        [0, 10, text.len() - last, text.len() - 1, text.len()],
    );
    for warc_end in warc_ends {
        for text_end in text_ends {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join(file.file_name().unwrap());
            fs::write(&file, &bytes[..warc_end]).unwrap();
            let lines_file = file.to_str().unwrap().replace(warc_file::OPEN, ".jsonl");
            fs::write(&lines_file, &text[..text_end]).unwrap();
            drop(folder::take(folder.path()).unwrap());
            let whole: Vec<WarcRecord> = all
                .iter()
                .filter(|record| record.offset + record.length <= u64::try_from(warc_end).unwrap())
                .cloned()
                .collect();
            assert_eq!(all_records(folder.path()), whole, "{warc_end} {text_end}");
            assert_eq!(files(folder.path(), ".open"), Vec::<PathBuf>::new());
            assert_eq!(files(folder.path(), ".jsonl").is_empty(), whole.is_empty());
            let kept = lines(folder.path());
            let offsets: BTreeSet<u64> = whole.iter().map(|record| record.offset).collect();
            assert!(kept.iter().all(|line| offsets.contains(&line.offset)), "{warc_end} {text_end}");
            let there = text[..text_end].lines().filter_map(|line| serde_json::from_str::<ResponseLine>(line).ok());
            let expected = there.filter(|line| offsets.contains(&line.offset)).count();
            // If only the line feed of the last line is missing, the line is removed too, although
            // its content is complete.
            assert!(kept.len() == expected || kept.len() + 1 == expected && text_end == text.len() - 1);
        }
    }
}

#[tokio::test]
async fn garbage_after_the_last_record_is_removed_with_its_line() {
    let folder = killed(3).await;
    let (file, lines_file) =
        (files(folder.path(), ".open").pop().unwrap(), files(folder.path(), ".jsonl").pop().unwrap());
    let (length, text) = (fs::metadata(&file).unwrap().len(), fs::read_to_string(&lines_file).unwrap());
    let all = records(&file).unwrap();
    OpenOptions::new().append(true).open(&file).unwrap().write_all(&[0; 5000]).unwrap();
    // Simulate a power failure after which the line is on the disk, but not its record.
    let mut line: ResponseLine = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    (line.offset, line.length) = (length, 4000);
    let line = serde_json::to_string(&line).unwrap();
    fs::write(&lines_file, format!("{text}{line}\n\0\0\0\0")).unwrap();
    drop(folder::take(folder.path()).unwrap());
    assert_eq!(all_records(folder.path()), all);
    assert_eq!(lines(folder.path()).len(), 3);
}

#[tokio::test]
async fn a_folder_has_one_store_at_a_time_and_existing_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let taken = Store::open(&config(folder.path()), "b").unwrap_err();
    assert!(matches!(taken, FolderError::Taken { .. }), "{taken}");
    record(&store.recorder("a.cn", None), answered("http://a.cn/1"), b"x").await;
    drop(taken);
    store.close().await;
    assert_eq!(files(folder.path(), ".warc.gz"), Vec::<PathBuf>::new(), "nobody handed it over");
    for number in 0..3 {
        let store = open(&folder);
        let recorder = store.recorder("a.cn", None);
        record(&recorder, answered(&format!("http://a.cn/{number}")), b"x").await;
        recorder.stored().await.unwrap();
        store.close().await;
        assert!(recorder.stored().await.is_err());
        assert_eq!(store.paused().as_deref(), Some(GONE));
    }
    assert_eq!(lines(folder.path()).len(), 3);
}

#[tokio::test]
async fn crawls_pause_while_writes_fail_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    let store = Store::open(&config(&path), "a").unwrap();
    fs::remove_dir_all(&path).unwrap();
    let recorder = store.recorder("a.cn", None);
    let mut waiting = {
        let recorder = recorder.clone();
        tokio::spawn(async move {
            for number in 0..100 {
                record(&recorder, answered(&format!("http://a.cn/{number}")), b"x").await;
            }
            recorder.stored().await
        })
    };
    let mut paused = store.paused.clone();
    let reason = paused.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert!(reason.starts_with(&format!("pages cannot be stored in {}: ", path.display())), "{reason}");
    assert_eq!(store.paused(), Some(reason));
    let mut ready = {
        let recorder = store.recorder("b.cn", None);
        tokio::spawn(async move { recorder.ready().await })
    };
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished() && !ready.is_finished());
    fs::create_dir(&path).unwrap();
    (&mut waiting).await.unwrap().unwrap();
    (&mut ready).await.unwrap();
    assert_eq!(store.paused(), None);
    store.close().await;
    let urls: Vec<String> = lines(&path).into_iter().map(|line| line.url).collect();
    assert_eq!(urls, (0..100).map(|number| format!("http://a.cn/{number}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_full_disk_pauses_crawls_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&StoreConfig { min_free_bytes: 1 << 60, ..config(folder.path()) }, "a").unwrap();
    let full = store.paused().unwrap();
    assert!(full.contains("disk full: ") && full.contains("crawling resumes at"), "{full}");
    let recorder = store.recorder("a.cn", None);
    let ready = tokio::time::timeout(Duration::from_millis(50), recorder.ready()).await;
    assert!(ready.is_err(), "no request may be sent");
    // An exchange that has already begun is still stored.
    record(&recorder, answered("http://a.cn/"), b"x").await;
    recorder.synced().await.unwrap();
    assert_eq!(lines(folder.path()).len(), 1);
}

#[tokio::test]
async fn fifty_large_pages_wait_on_the_disk_and_not_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let recorder = store.recorder("a.cn", None);
    let piece: Vec<u8> =
        (0..64 << 10).map(|number: u32| (number.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect();
    let mut recordings: Vec<Recording> =
        (0..50).map(|number| recorder.begin(answered(&format!("http://a.cn/{number}")))).collect();
    for _ in 0..(5 << 20) / piece.len() {
        for recording in &mut recordings {
            recording.push(&piece).await;
        }
        let held: usize = recordings.iter().map(Recording::held).sum();
        assert!(held <= 50 * (512 << 10), "{held} bytes are held");
    }
    recordings.truncate(2);
    drop(recordings);
    recorder.stored().await.unwrap();
    store.close().await;
    let stored = lines(folder.path());
    assert!(stored.len() == 50 && stored.iter().all(|line| line.stored_bytes == 5 << 20));
    let names: Vec<String> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 3, "what was on the disk has no name: {names:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_recorded_reads_back_equal(
        exchanges in prop::collection::vec(
            (".{0,40}", prop::collection::vec(any::<u8>(), 0..2000), 0..4_usize, prop::collection::vec(any::<u8>(), 0..60), any::<bool>()),
            1..6,
        ),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let made: Vec<(String, Vec<u8>, Vec<u8>)> = exchanges
            .into_iter()
            .map(|(url, body, repeats, value, whole)| {
                // Bodies have up to 800 KB, so some of them are moved to a file.
                let repeated = body.repeat(1 + repeats * if whole { 100 } else { 1 });
                let head = [b"HTTP/1.1 200 OK\r\nx: ", value.as_slice(), b"\r\n\r\n"].concat();
                (url, head, repeated)
            })
            .collect();
        runtime.block_on(async {
            let store = open(&folder);
            let recorder = store.recorder("a.cn", None);
            for (url, head, body) in &made {
                record(&recorder, AnsweredRequest { head: head.clone(), ..answered(url) }, body).await;
            }
            recorder.stored().await.unwrap();
            store.close().await;
        });
        let all = all_records(folder.path());
        prop_assert_eq!(all.len(), 1 + 2 * made.len());
        for (record, (url, head, body)) in all[1..].iter().step_by(2).zip(&made) {
            // The field must be one line, whatever the URL contains.
            let read = record.field("WARC-Target-URI").unwrap();
            prop_assert!(!read.contains(char::is_control) || read.chars().all(|c| !c.is_ascii_control()));
            prop_assert_eq!(read.len() >= url.len(), true);
            prop_assert_eq!(record.fields.iter().filter(|(name, _)| name == "WARC-Target-URI").count(), 1);
            prop_assert_eq!(&record.block, &[head.as_slice(), body.as_slice()].concat());
        }
        let read = lines(folder.path());
        prop_assert!(read.iter().zip(&made).all(|(line, (url, _, body))| line.url == *url && line.stored_bytes == body.len() as u64));
    }
}

#[test]
fn no_value_can_start_another_field() {
    let mut fields = records::Fields::new("response", "<urn:uuid:0>", &records::date(SystemTime::UNIX_EPOCH));
    fields.add("WARC-Target-URI", "http://a.cn/\r\nWARC-Type: request\n\rx\0\u{7f}");
    let head = fields.end(0);
    assert!(head.contains("WARC-Target-URI: http://a.cn/%0D%0AWARC-Type: request%0A%0Dx%00%7F\r\n"), "{head}");
}
