//! The picture as SVG: one file that loads nothing else, light or dark as its reader prefers.

use std::fmt::Write;

use super::axes::{Axes, Tick};
use super::{Picture, Point};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 736.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 388.0;
/// The approximate width of a character of a label.
const CHARACTER: f64 = 6.6;

const STYLE: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#57606a}\
.title{font-size:16px;font-weight:600;fill:#1f2328}.label{fill:#1f2328;font-weight:500;paint-order:stroke;stroke:#fff;stroke-width:3px}\
.ground{fill:#fff}.grid{stroke:#e6e8eb}.axis{stroke:#8c959f}\
.reach{stroke:#0969da;stroke-opacity:.45;stroke-width:2;fill:none}\
.leader{stroke:#8c959f;stroke-width:.75}\
.dot{fill:#0969da;stroke:#fff;stroke-width:1.5}\
@media(prefers-color-scheme:dark){text{fill:#9198a1}.title,.label{fill:#f0f6fc}.label{stroke:#0d1117}\
.ground{fill:#0d1117}.grid{stroke:#262c36}.axis{stroke:#656c76}\
.reach{stroke:#58a6ff}.leader{stroke:#656c76}.dot{fill:#58a6ff;stroke:#0d1117}}";

/// Draws the picture.
pub(super) fn draw(picture: &Picture) -> String {
    let axes = Axes::of(picture);
    let mut svg = Svg(String::new());
    svg.line(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         role=\"img\" aria-labelledby=\"title subtitle\">"
    ));
    svg.line(format_args!("<title id=\"title\">{}</title>", escaped(&picture.title)));
    svg.line(format_args!("<desc id=\"subtitle\">{}</desc>", escaped(&picture.subtitle)));
    svg.line(format_args!("<style>{STYLE}</style>"));
    svg.line(format_args!("<rect class=\"ground\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>"));
    svg.text(24.0, 32.0, "title", "start", &picture.title);
    svg.text(24.0, 52.0, "", "start", &picture.subtitle);
    svg.frame(&axes);
    let places: Vec<Place> = picture.points.iter().map(|point| Place::of(point, &axes)).collect();
    for place in &places {
        svg.reach(place);
    }
    for (point, place) in picture.points.iter().zip(&places) {
        svg.line(format_args!(
            "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\"><title>{}</title></circle>",
            place.x,
            place.y,
            escaped(&point.label)
        ));
    }
    svg.labels(&picture.points, &places);
    svg.line(format_args!("</svg>"));
    svg.0
}

/// The place of a point on the page.
struct Place {
    x: f64,
    y: f64,
    /// The end of the line to its 99th percentile.
    end: f64,
}

impl Place {
    fn of(point: &Point, axes: &Axes) -> Place {
        let (x, end) = (across(axes.across(point.median)), across(axes.across(point.p99)));
        Place { x, y: up(axes.up(point.saved)), end }
    }

    fn boxes(&self) -> [Area; 2] {
        let reach =
            Area { left: self.x, right: self.end + 3.0, top: self.y - 3.0, bottom: self.y + 3.0 };
        let dot = Area::around(self.x, self.y, 7.0, 7.0);
        [dot, reach]
    }
}

fn across(part: f64) -> f64 {
    LEFT + part * (RIGHT - LEFT)
}

fn up(part: f64) -> f64 {
    BOTTOM - part * (BOTTOM - TOP)
}

/// A rectangle that something covers.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Area {
    fn around(x: f64, y: f64, half_width: f64, half_height: f64) -> Area {
        let (left, right) = (x - half_width, x + half_width);
        Area { left, right, top: y - half_height, bottom: y + half_height }
    }

    /// How much of the two lies on each other.
    fn overlap(&self, other: &Area) -> f64 {
        let width = self.right.min(other.right) - self.left.max(other.left);
        let height = self.bottom.min(other.bottom) - self.top.max(other.top);
        width.max(0.0) * height.max(0.0)
    }

    /// How much of it lies outside the plot.
    fn outside(&self) -> f64 {
        let plot = Area { left: LEFT, right: WIDTH - 4.0, top: TOP - 16.0, bottom: BOTTOM - 2.0 };
        let whole = (self.right - self.left) * (self.bottom - self.top);
        whole - self.overlap(&plot)
    }
}

struct Svg(String);

impl Svg {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _never = writeln!(self.0, "{line}");
    }

    fn text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let text = escaped(text);
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        self.line(format_args!(
            "<text{class} x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    fn stroke(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.line(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    fn frame(&mut self, axes: &Axes) {
        for (place, name) in axes.saved_ticks() {
            let y = up(place);
            self.stroke("grid", (LEFT, y), (RIGHT, y));
            self.text(LEFT - 8.0, y + 4.0, "", "end", &name);
        }
        let ticks: Vec<Tick> = axes.delay_ticks(0.06);
        for (place, name) in ticks {
            let x = across(place);
            self.stroke("grid", (x, TOP), (x, BOTTOM));
            self.text(x, BOTTOM + 18.0, "", "middle", &name);
        }
        self.stroke("axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
        self.text(24.0, TOP - 12.0, "label", "start", "runs saved");
        self.text((LEFT + RIGHT) / 2.0, BOTTOM + 40.0, "label", "middle", "delay added");
        let legend = "dot: median, line: up to the 99th percentile; labels: min–max";
        self.text((LEFT + RIGHT) / 2.0, BOTTOM + 58.0, "", "middle", legend);
    }

    fn reach(&mut self, place: &Place) {
        let Place { x, y, end } = place;
        if end - x > 1.0 {
            self.line(format_args!("<path class=\"reach\" d=\"M{x:.1} {y:.1}H{end:.1}m0 -4v8\"/>"));
        }
    }

    /// Puts each label beside its point, where it covers the least of what is there already.
    fn labels(&mut self, points: &[Point], places: &[Place]) {
        let mut taken: Vec<Area> = places.iter().flat_map(Place::boxes).collect();
        for (point, place) in points.iter().zip(places) {
            #[expect(clippy::cast_precision_loss, reason = "a label is short")]
            let half = point.label.chars().count() as f64 * CHARACTER / 2.0;
            let area = best_place(place, half, &taken);
            taken.push(area);
            let (x, y) = ((area.left + area.right) / 2.0, (area.top + area.bottom) / 2.0);
            let ((dx, dy), beside) = ((x - place.x, y - place.y), half + 14.0);
            if dy.abs() > 20.0 || dx.abs() > beside {
                let from_y = if dy > 0.0 { area.top + 1.0 } else { area.bottom - 1.0 };
                self.stroke("leader", (place.x, place.y), (x, from_y));
            }
            self.text(x, y + 4.0, "label", "middle", &point.label);
        }
    }
}

/// Tries places around a point, near ones first.
fn best_place(place: &Place, half: f64, taken: &[Area]) -> Area {
    let beside = half + 10.0;
    let near = [(0.0, -15.0), (0.0, 15.0), (-beside, 0.0), (beside, -12.0), (-beside, -12.0)];
    let more = [(beside, 12.0), (-beside, 12.0)];
    let far = [1.0, 2.0, 3.0, 4.0].into_iter().flat_map(|step: f64| {
        let down = 15.0 + step * 15.0;
        [
            (0.0, -down),
            (0.0, down),
            (-beside, -down),
            (beside, -down),
            (-beside, down),
            (beside, down),
        ]
    });
    let mut best: Option<(f64, Area)> = None;
    for (dx, dy) in near.into_iter().chain(more).chain(far) {
        let area = Area::around(place.x + dx, place.y + dy, half, 7.0);
        let cost = area.outside() + taken.iter().map(|other| area.overlap(other)).sum::<f64>();
        if best.is_none_or(|(least, _)| cost < least - 0.5) {
            best = Some((cost, area));
        }
        if cost < 0.5 {
            break;
        }
    }
    best.map_or_else(|| Area::around(place.x, place.y, half, 7.0), |(_, area)| area)
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            // XML has no way to write other control characters.
            control if control.is_control() => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}
