//! Rings in files: what is shown, in which order, and what waits.

use std::{fs::File, os::unix::fs::FileExt as _};

use super::*;
use crate::probe_traffic::Random;

const BYTES: u32 = 1 << 16;
/// A record: a number, and when it was begun.
const RECORD: usize = 16;
const HEADER: u64 = 8;
const WHOLE: u64 = HEADER + RECORD as u64;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// A producer of records in a file that passes for a ring.
struct Producer {
    file: File,
    page: u64,
    at: u64,
}

/// A record that is begun.
struct Begun {
    at: u64,
    number: u64,
    at_ns: u64,
}

impl Producer {
    fn header(&self, at: u64, length: u32) {
        let header = [length, 0].map(u32::to_ne_bytes).concat();
        let data = 2 * self.page + at % u64::from(BYTES);
        self.file.write_all_at(&header, data).unwrap();
    }

    /// Begins a record. Returns where.
    fn begin(&mut self) -> u64 {
        let at = self.at;
        self.header(at, RECORD as u32 | BUSY);
        self.at += WHOLE;
        let position = self.at.to_ne_bytes();
        self.file.write_all_at(&position, self.page).unwrap();
        at
    }

    fn finish(&self, begun: &Begun) {
        for (word, place) in [begun.number, begun.at_ns].into_iter().zip([8, 16]) {
            let at = (begun.at + place) % u64::from(BYTES);
            let data = 2 * self.page + at;
            self.file.write_all_at(&word.to_ne_bytes(), data).unwrap();
        }
        self.header(begun.at, RECORD as u32);
    }

    fn take_back(&self, begun: &Begun) {
        self.header(begun.at, RECORD as u32 | DISCARDED);
    }

    fn write(&mut self, number: u64, at_ns: u64) {
        let at = self.begin();
        self.finish(&Begun { at, number, at_ns });
    }
}

fn rings(count: usize) -> (Rings, Vec<Producer>) {
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap();
    let page = u64::try_from(page.unwrap()).unwrap();
    let producers = (0..count).map(|_| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 * page + u64::from(BYTES)).unwrap();
        Producer { file, page, at: 0 }
    });
    let producers: Vec<_> = producers.collect();
    let fds = producers
        .iter()
        .map(|p| (p.file.try_clone().unwrap().into(), BYTES));
    (Rings::new(fds.collect()).unwrap(), producers)
}

fn number_of(record: &[u8]) -> u64 {
    let (number, _) = record.split_first_chunk().unwrap();
    u64::from_ne_bytes(*number)
}

fn numbers(rings: &mut Rings, most: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    rings.drain(most, |record| numbers.push(number_of(record)));
    numbers
}

#[test]
fn who_reads_as_fast_as_records_come_is_not_kept() {
    const THERE: u64 = 3;
    let (mut rings, mut producers) = rings(2);
    let both = producers.iter_mut();
    both.for_each(|producer| (0..THERE).for_each(|at| producer.write(7, at)));
    // Some times around.
    for _ in 0..u64::from(BYTES) / WHOLE {
        let mut number = 0;
        let bytes = rings.drain(u64::MAX / 2, |record| {
            assert_eq!(number_of(record), 7);
            number += 1;
            producers[number % 2].write(7, number as u64);
        });
        assert_eq!((number as u64, bytes), (2 * THERE, 2 * THERE * WHOLE));
        assert_eq!(rings.waiting(), 2 * THERE * WHOLE);
    }
    let drained = rings.drain(WHOLE, |_| {});
    assert_eq!(drained, WHOLE, "it has a bound of its own");
    assert_eq!(rings.drain(WHOLE + 1, |_| {}), 2 * WHOLE);
    assert_eq!(rings.drain(u64::MAX / 2, |_| {}), 3 * WHOLE);
    assert_eq!(rings.drain(u64::MAX / 2, |_| {}), 0);
}

#[test]
fn one_that_is_not_finished_holds_all_up() {
    let (mut rings, mut producers) = rings(2);
    let at = producers[1].begin();
    producers[0].write(1, 1);
    assert_eq!(numbers(&mut rings, u64::MAX / 2), [0_u64; 0]);
    let begun = Begun {
        at,
        number: 2,
        at_ns: 0,
    };
    producers[1].finish(&begun);
    assert_eq!(numbers(&mut rings, u64::MAX / 2), [2, 1]);
    assert_eq!(rings.waiting(), 0);
}

#[test]
fn one_that_is_taken_back_is_passed_over() {
    let (mut rings, mut producers) = rings(2);
    for (ring, producer) in producers.iter_mut().enumerate() {
        let begun = Begun {
            at: producer.begin(),
            number: 0,
            at_ns: 0,
        };
        producer.take_back(&begun);
        producer.write(ring as u64 + 1, 1);
    }
    assert_eq!(numbers(&mut rings, u64::MAX / 2), [1, 2]);
    assert_eq!(rings.waiting(), 0);
}

/// A processor's work: what it does now, and below it what that has interrupted.
#[derive(Default)]
struct Processor(Vec<Work>);

enum Work {
    /// The time is read: of the record with this number.
    Timed(u64, u64),
    Begun(Begun),
}

impl Processor {
    /// Goes on with what it does now. Returns what is finished by it.
    fn go_on(&mut self, ring: usize, producers: &mut [Producer]) -> Option<u64> {
        match self.0.pop()? {
            Work::Timed(number, at_ns) => {
                let at = producers[ring].begin();
                self.0.push(Work::Begun(Begun { at, number, at_ns }));
                None
            }
            Work::Begun(begun) => {
                producers[ring].finish(&begun);
                Some(begun.number)
            }
        }
    }
}

/// Processors that are interrupted at any point, more of them than rings. A record may have been led to by all that were
/// finished before its time was read.
#[test]
fn whatever_led_to_a_record_is_shown_before_it() {
    const PROCESSORS: usize = 5;
    for seed in 1..=200 {
        let mut random = Random::new(seed);
        let count = 1 + random.below(4);
        let (mut rings, mut producers) = rings(count);
        let mut processors: [Processor; PROCESSORS] = Default::default();
        let (mut now, mut longest) = (0, 0);
        let (mut finished, mut shown) = (Vec::new(), Vec::new());
        // By number: how many were finished before its time was read.
        let mut led: Vec<usize> = Vec::new();
        for _ in 0..3_000 {
            let at = random.below(PROCESSORS);
            match random.below(5) {
                0 => {
                    let most = 1 + random.below(20) as u64 * WHOLE;
                    let news = numbers(&mut rings, most);
                    longest = longest.max(news.len());
                    shown.extend(news);
                }
                1 if processors[at].0.len() < 3 => {
                    // Processors may read the same time, if nothing was finished between.
                    let is_later = finished.len() > led.last().copied().unwrap_or_default();
                    now += u64::from(is_later || random.below(2) == 0);
                    processors[at].0.push(Work::Timed(led.len() as u64, now));
                    led.push(finished.len());
                }
                _ => finished.extend(processors[at].go_on(at % count, &mut producers)),
            }
        }
        for (at, processor) in processors.iter_mut().enumerate() {
            while !processor.0.is_empty() {
                finished.extend(processor.go_on(at % count, &mut producers));
            }
        }
        shown.extend(numbers(&mut rings, u64::MAX / 2));
        assert!(longest > 1, "{seed}: none were shown together");
        let mut places = vec![None; led.len()];
        for (place, number) in shown.iter().enumerate() {
            let before = places[*number as usize].replace(place);
            assert_eq!(before, None, "{seed}: {number} is shown once");
        }
        for (number, led) in led.iter().enumerate() {
            for before in &finished[..*led] {
                let (before, after) = (places[*before as usize], places[number]);
                assert!(
                    before.is_some() && before < after,
                    "{seed}: what was finished before {number} began is shown before it"
                );
            }
        }
    }
}
