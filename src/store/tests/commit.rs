//! The writing thread, and the tasks that wait for it.

use super::*;

struct Quiet;

impl Watch for Quiet {
    fn nanos(&self) -> u64 {
        0
    }
    fn committed(&self, _: u64, _: u64, _: u64) {}
    fn missing(&self, _: &str) {}
    fn refused(&self, _: u64, _: u64, _: Refused) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_sync_fails_everybody_is_refused_and_the_owner_is_told() {
    let disk = Simulated::default();
    let opened = Opened::open(Arc::new(disk.clone()), &options()).unwrap();
    let committer = Committer::start(opened, std::time::Duration::ZERO, Arc::new(Quiet)).unwrap();
    committer.append(record(b"one")).await.unwrap().applied();
    disk.fail_syncs();
    for _ in 0..3 {
        assert_eq!(committer.append(record(b"two")).await.unwrap_err(), Refused::Stopped);
    }
    committer.stopped().await;
    assert_eq!(committer.ledger().applied(), 1);
    disk.power_loss(&mut Dice::new(1));
    assert_eq!(open(&disk, &options()).unwrap().1[0], b"one");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_waiters_share_a_sync_and_tickets_say_what_is_applied() {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(Folder::new(folder.path()).unwrap());
    let opened = Opened::open(Arc::clone(&disk), &options()).unwrap();
    let committer = Committer::start(opened, std::time::Duration::ZERO, Arc::new(Quiet)).unwrap();
    let appends = (0..200_u8).map(|byte| {
        let committer = committer.clone();
        tokio::spawn(async move { committer.append(record(&[byte])).await.unwrap() })
    });
    let mut tickets = Vec::new();
    for append in appends.collect::<Vec<_>>() {
        tickets.push(append.await.unwrap());
    }
    tickets.sort_by_key(Ticket::seq);
    assert_eq!(tickets.iter().map(Ticket::seq).collect::<Vec<_>>(), (1..=200).collect::<Vec<_>>());
    let open_one = tickets.remove(149);
    tickets.into_iter().for_each(Ticket::applied);
    assert_eq!(committer.ledger().applied(), 149);
    open_one.applied();
    assert_eq!(committer.ledger().applied(), 200);
    committer.release(200).await;
    drop(committer);
    let found = Recovery::run(disk.as_ref(), &options());
    assert!(found.is_err() || found.is_ok_and(|found| found.next() == 201));
}
