use super::*;

async fn stored(spool: &Spool, parts: &[&[u8]]) -> Stored {
    let mut file = spool.create(1 << 20).await.unwrap();
    for part in parts {
        file.write(part.to_vec().into()).await.unwrap();
    }
    file.finish().unwrap()
}

#[tokio::test]
async fn bytes_come_back_as_they_were_with_their_hash() {
    let directory = tempfile::tempdir().unwrap();
    let spool = Spool::new(directory.path(), 10 << 20, 8);
    let bytes: Vec<u8> = (0..600_000_u32).map(|i| i.to_le_bytes()[1]).collect();
    let stored = stored(&spool, &[&bytes[..10], &bytes[10..300_000], &bytes[300_000..]]).await;
    let mut read = Vec::new();
    loop {
        let part = stored.read(read.len() as u64).await.unwrap();
        assert!(part.len() <= READ_MAX);
        if part.is_empty() {
            break;
        }
        read.extend(part);
    }
    assert!(read == bytes);
    assert_eq!((stored.size(), stored.prefix()), (600_000, &bytes[..PREFIX_MAX]));
    let sha256: [u8; 32] = <sha2::Sha256 as sha2::Digest>::digest(&bytes).into();
    assert_eq!(stored.sha256(), sha256);
    assert_eq!(stored.read(u64::MAX).await.unwrap(), b"");
}

#[tokio::test]
async fn an_empty_file_is_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let stored = stored(&Spool::new(directory.path(), 0, 8), &[]).await;
    assert_eq!((stored.size(), stored.read(0).await.unwrap()), (0, Vec::new()));
}

#[tokio::test]
async fn nothing_is_left_in_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let spool = Spool::new(directory.path(), 10 << 20, 8);
    let _stored = stored(&spool, &[b"abc"]).await;
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_file_larger_than_allowed_is_refused_to_the_byte() {
    let directory = tempfile::tempdir().unwrap();
    let spool = Spool::new(directory.path(), 10 << 20, 8);
    let mut file = spool.create(4).await.unwrap();
    file.write(Bytes::from_static(b"1234")).await.unwrap();
    let error = file.write(Bytes::from_static(b"5")).await.unwrap_err();
    assert_eq!(error.to_string(), "artifact larger than 4 bytes");
    assert!(matches!(
        file.write(Bytes::new()).await,
        Err(SpoolError::Interrupted { .. })
    ));
    assert_eq!(spool.used_bytes(), 0);
}

#[tokio::test]
async fn the_room_of_all_files_is_bounded_and_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let spool = Spool::new(directory.path(), 10, 8);
    let first = stored(&spool, &[b"123456"]).await;
    let mut second = spool.create(100).await.unwrap();
    second.write(Bytes::from_static(b"7890")).await.unwrap();
    assert!(matches!(
        second.write(Bytes::from_static(b"1")).await,
        Err(SpoolError::Full { max_bytes: 10, .. })
    ));
    assert_eq!(spool.used_bytes(), 6);
    drop(first);
    assert_eq!(spool.used_bytes(), 0);
    stored(&spool, &[b"1234567890"]).await;
}

#[tokio::test]
async fn the_number_of_files_is_bounded_and_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let spool = Spool::new(directory.path(), 10, 2);
    let first = stored(&spool, &[b"1"]).await;
    let _second = spool.create(1).await.unwrap();
    let third = spool.create(1).await;
    assert!(matches!(third, Err(SpoolError::TooMany { max_files: 2, .. })));
    drop(first);
    spool.create(1).await.unwrap();
}

#[tokio::test]
async fn a_directory_that_is_missing_is_said() {
    let error = Spool::new(Path::new("/nonexistent/spool"), 1, 8)
        .create(1)
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("spool /nonexistent/spool: No such file or directory"),
        "{text}"
    );
}
