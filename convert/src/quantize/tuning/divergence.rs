//! How far predictions are from those that they should be: their KL divergence, and its gradient.

use rayon::prelude::*;
use smolrun::format::PANEL;
use smolrun::{Kernels, PlainOp, exp};

use super::panels::Lanes;

/// Panels that a thread takes at a time.
const CHUNK: usize = 64;

/// Logits, `[panels][rows][16]`, of a student and of a teacher.
pub(super) struct Logits {
    pub(super) student: Vec<f32>,
    pub(super) teacher: Vec<f32>,
}

/// What is known of a row in some panels.
#[derive(Clone, Copy)]
struct Row {
    /// The largest logit of each.
    most: [f32; 2],
    /// The sums of what e is to the power of, above that.
    sums: [f32; 2],
    /// The sum of the teacher's, each times how much nearer its logit is to the largest one than the student's.
    cross: f32,
}

impl Row {
    const NONE: Row = Row { most: [f32::MIN; 2], sums: [0.0; 2], cross: 0.0 };
}

impl Logits {
    /// The mean over the rows of the KL divergence of the student from the teacher, in nats. Its gradient takes the place of
    /// the student's logits. `vocab_size` of them count.
    pub(super) fn divergence(&mut self, kernels: Kernels, rows: usize, vocab_size: usize) -> f64 {
        let Logits { student, teacher } = self;
        hide(student, rows, vocab_size);
        hide(teacher, rows, vocab_size);
        let len = CHUNK * rows * PANEL;
        let chunks = student.par_chunks(len).zip(teacher.par_chunks(len));
        let most: Vec<_> = chunks
            .map(|(student, teacher)| {
                let mut found = vec![Row::NONE; rows];
                kernels.compute(Most { student: lanes(student), teacher: lanes(teacher), rows: &mut found });
                found
            })
            .collect();
        let most = join(&most, |row, other| {
            row.most = [row.most[0].max(other.most[0]), row.most[1].max(other.most[1])];
        });
        let chunks = student.par_chunks_mut(len).zip(teacher.par_chunks_mut(len));
        let sums: Vec<_> = chunks
            .map(|(student, teacher)| {
                let mut found = most.clone();
                let (student, teacher) = (student.as_chunks_mut().0, teacher.as_chunks_mut().0);
                kernels.compute(Powers { student, teacher, rows: &mut found });
                found
            })
            .collect();
        let sums = join(&sums, |row, other| {
            row.sums = [row.sums[0] + other.sums[0], row.sums[1] + other.sums[1]];
            row.cross += other.cross;
        });
        let chunks = student.par_chunks_mut(len).zip(teacher.par_chunks(len));
        chunks.for_each(|(student, teacher)| {
            kernels.compute(Gradient {
                student: student.as_chunks_mut().0,
                teacher: lanes(teacher),
                rows: &sums,
            });
        });
        let divergence = |row: &Row| {
            let [student, teacher] = row.sums.map(f64::from);
            f64::from(row.cross) / teacher + (student / teacher).ln()
        };
        sums.iter().map(divergence).sum::<f64>() / rows as f64
    }
}

fn lanes(numbers: &[f32]) -> &[Lanes] {
    numbers.as_chunks().0
}

/// What fills up the last panel is never predicted.
fn hide(logits: &mut [f32], rows: usize, vocab_size: usize) {
    let last = vocab_size / PANEL * rows;
    for lanes in logits.as_chunks_mut::<PANEL>().0.iter_mut().skip(last) {
        lanes[vocab_size % PANEL..].fill(f32::MIN);
    }
}

/// One of each row, from those of all chunks in their order.
fn join(chunks: &[Vec<Row>], add: impl Fn(&mut Row, &Row)) -> Vec<Row> {
    let mut chunks = chunks.iter();
    let mut joined = chunks.next().cloned().unwrap_or_default();
    chunks.for_each(|chunk| joined.iter_mut().zip(chunk).for_each(|(row, other)| add(row, other)));
    joined
}

struct Most<'a> {
    student: &'a [Lanes],
    teacher: &'a [Lanes],
    rows: &'a mut [Row],
}

impl PlainOp for Most<'_> {
    #[inline(always)]
    fn compute(self) {
        let Most { student, teacher, rows } = self;
        let count = rows.len();
        for (index, row) in rows.iter_mut().enumerate() {
            for (most, logits) in row.most.iter_mut().zip([student, teacher]) {
                let mut lanes = [f32::MIN; PANEL];
                for logits in logits[index..].iter().step_by(count) {
                    for lane in 0..PANEL {
                        lanes[lane] = lanes[lane].max(logits[lane]);
                    }
                }
                *most = lanes.iter().fold(f32::MIN, |most, &logit| most.max(logit));
            }
        }
    }
}

/// Logits become what e is to the power of, above the largest ones of `rows`.
struct Powers<'a> {
    student: &'a mut [Lanes],
    teacher: &'a mut [Lanes],
    rows: &'a mut [Row],
}

impl PlainOp for Powers<'_> {
    #[inline(always)]
    fn compute(self) {
        let Powers { student, teacher, rows } = self;
        let count = rows.len();
        for (index, row) in rows.iter_mut().enumerate() {
            let [mut of_student, mut of_teacher, mut cross] = [[0.0; PANEL]; 3];
            let logits =
                student[index..].iter_mut().step_by(count).zip(teacher[index..].iter_mut().step_by(count));
            for (student, teacher) in logits {
                for lane in 0..PANEL {
                    let (s, t) = (student[lane] - row.most[0], teacher[lane] - row.most[1]);
                    (student[lane], teacher[lane]) = (exp(s), exp(t));
                    of_student[lane] += student[lane];
                    of_teacher[lane] += teacher[lane];
                    cross[lane] += teacher[lane] * (t.max(LEAST) - s.max(LEAST));
                }
            }
            row.sums = [of_student.iter().sum(), of_teacher.iter().sum()];
            row.cross = cross.iter().sum();
        }
    }
}

/// The least power that counts: [`exp`] has no smaller ones.
const LEAST: f32 = -87.0;

/// The gradient of the mean divergence at the student's logits.
struct Gradient<'a> {
    student: &'a mut [Lanes],
    teacher: &'a [Lanes],
    rows: &'a [Row],
}

impl PlainOp for Gradient<'_> {
    #[inline(always)]
    fn compute(self) {
        let Gradient { student, teacher, rows } = self;
        let count = rows.len();
        for (index, row) in rows.iter().enumerate() {
            let [of_student, of_teacher] = row.sums.map(|sum| 1.0 / (sum * count as f32));
            let powers =
                student[index..].iter_mut().step_by(count).zip(teacher[index..].iter().step_by(count));
            for (student, teacher) in powers {
                for lane in 0..PANEL {
                    student[lane] = student[lane] * of_student - teacher[lane] * of_teacher;
                }
            }
        }
    }
}
