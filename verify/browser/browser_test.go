//go:build browser

// Package browser tests the page of idemdemo serve in a real Chromium. It has a build tag because, unlike
// the other tests, it needs a program that Go does not bring along; "make browser" sees to that.
package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// TestPayments presses every button and reads what the page makes of it.
func TestPayments(t *testing.T) {
	s := serve(t, anyPort)
	p := open(t, s.url, desktop)
	require.Equal(t, "None. A slow payment shows one.", p.text("keys-note"))
	require.Equal(t, "Nothing was charged yet.", p.text("ledger-note"))

	for _, press := range []struct{ button, answer string }{
		{"new", "201 {"}, {"again", "201 (replayed) {"}, {"other", "422 "}, {"none", "400 "},
	} {
		p.press(press.button)
		p.until(`$("answer").textContent.includes("\n` + press.answer + `")`)
	}
	p.press("slow")
	p.until(`$("running").textContent === "1" && $("keys").rows.length === 2`)
	p.press("again")
	p.until(`$("answer").textContent.includes("\n409 ")`)
	p.until(`[...$("outcomes").tBodies[0].rows].every(row => row.cells[1].textContent === "1" && row.cells[2].textContent === "1")`)

	require.Equal(t, "1", p.text("charges"), "only the first has charged")
	require.Equal(t, "1", p.text("saved"))
	require.Equal(t, 2, eval[int](p, `$("ledger").rows.length`), "a header and a charge")
	require.Regexp(t, `^[0-9.]+ s$`, eval[string](p, `$("keys").rows[1].cells[1].textContent`), "age")
	require.Regexp(t, `^[0-9.]+ s$`, eval[string](p, `$("keys").rows[1].cells[2].textContent`), "lease left")
	require.Equal(t, 8, eval[int](p, `$("shards").tBodies[0].rows.length`))
	require.Contains(t, eval[string](p, `$("shards").tBodies[0].textContent`), "KiB")

	asked, said := p.heard()
	for _, address := range asked {
		require.Regexp(t, "^(data:|"+s.url+"/)", address, "the page asked an outside host")
	}
	require.Len(t, said, 3, "the console has more to say than that 422, 400 and 409 are no success: %v", said)
}

// TestChart compares the bars with the table beside them.
func TestChart(t *testing.T) {
	s := serve(t, anyPort)
	p := open(t, s.url, desktop)
	for i := range 9 {
		s.pay(t, "take=0s", fmt.Sprintf("k-%d", i/3), `{"order":"A-1","cents":1}`)
	}
	p.until(`$("outcomes").rows[1].cells[1].textContent === "3" && $("outcomes").rows[2].cells[1].textContent === "6"`)
	require.Equal(t, []float64{3, 6, 0, 0, 0}, eval[[]float64](p, `(() => {
		const [zero, , top] = document.querySelectorAll("#chart > line"); // the grid, whose labels give the scale
		const labels = [...document.querySelectorAll("#chart > text")].map(text => Number(text.textContent));
		const scale = labels[2] / (zero.getAttribute("y1") - top.getAttribute("y1"));
		const sum = o => [...document.querySelectorAll("#chart rect[data-o='" + o + "']")]
			.reduce((sum, rect) => sum + rect.getAttribute("height") * scale, 0);
		return [0, 1, 2, 3, 4].map(o => Math.round(sum(o) * 1000) / 1000);
	})()`), "ran, replayed and the others, as heights")
	require.Regexp(t, `^\d+ s ago: .*ran`, eval[string](p,
		`[...document.querySelectorAll("#chart title")].map(title => title.textContent).find(text => text.includes("ran"))`))
}

// TestHostileText shows a key and an order that would like to be HTML.
func TestHostileText(t *testing.T) {
	s := serve(t, anyPort)
	p := open(t, s.url, desktop)
	const key, order = "<img/src=x/onerror=document.title=1>", "<script>document.title=1</script>"
	s.pay(t, "take=0s", "k", `{"order":"`+order+`","cents":1}`)
	go s.pay(t, "take=20s", key, `{"order":"A-1","cents":1}`)
	p.until(`$("keys").rows.length === 2 && $("ledger").rows.length === 2`)
	require.Equal(t, key, eval[string](p, `$("keys").rows[1].cells[0].textContent`))
	require.Equal(t, order, eval[string](p, `$("ledger").rows[1].cells[1].textContent`))
	require.Equal(t, "idemdemo", eval[string](p, `document.title`))
}

// TestForeignScript adds a script to the page, as text that was taken for HTML would.
func TestForeignScript(t *testing.T) {
	p := open(t, serve(t, anyPort).url, desktop)
	require.Equal(t, "idemdemo", eval[string](p, `(() => {
		const script = document.createElement("script");
		script.textContent = "document.title = 'gone'";
		document.body.append(script);
		return document.title;
	})()`))
}

// TestReconnect takes the server away and gives it back.
func TestReconnect(t *testing.T) {
	s := serve(t, anyPort)
	p := open(t, s.url, desktop)
	s.stop()
	p.until(`$("link").textContent === "not connected, trying again"`)
	serve(t, strings.TrimPrefix(s.url, "http://"))
	p.until(`$("link").textContent === "live"`)
}

// TestPause presses the button of that name, twice.
func TestPause(t *testing.T) {
	s := serve(t, anyPort)
	p := open(t, s.url, desktop)
	p.until(`$("charges").textContent === "0"`)
	p.do(chromedp.Click(chromedp.CSS("#pause")))
	require.Equal(t, "Resume", p.text("pause"))
	s.pay(t, "take=0s", "k", `{"order":"A-1","cents":1}`)
	s.readEvents(t, 4) // by then the page has had at least two
	require.Equal(t, "0", p.text("charges"))
	p.do(chromedp.Click(chromedp.CSS("#pause")))
	p.until(`$("charges").textContent === "1"`)
}

// TestLooks checks what can be measured of the page's looks. With SCREENSHOTS set to a directory it leaves
// pictures there for what can't.
func TestLooks(t *testing.T) {
	s := serve(t, anyPort)
	long := strings.Repeat("0123456789", 8)
	for i := range 40 {
		s.pay(t, "take=0s", fmt.Sprintf("k-%d", i/3), fmt.Sprintf(`{"order":"order-%d","cents":4200}`, i/9))
	}
	s.pay(t, "take=0s", "", `{"order":"A-1","cents":1}`)
	s.pay(t, "take=0s", "long", `{"order":"`+long[:64]+`","cents":100000000}`)
	for i := range 3 {
		go s.pay(t, "take=1m", fmt.Sprintf("slow-%d-%s", i, long[:i*40]), `{"order":"A-1","cents":1}`)
	}
	small := window{320, 640, "light"}
	for _, w := range []window{desktop, phone, small, desktop.dark(), phone.dark(), small.dark()} {
		t.Run(w.String(), func(t *testing.T) {
			p := open(t, s.url, w)
			p.until(`$("keys").rows.length === 4 && $("ledger").rows.length > 10`)
			require.LessOrEqual(t, eval[int](p, `document.documentElement.scrollWidth`), int(w.width), "it scrolls sideways")
			require.Empty(t, eval[[]string](p, faint), "text below 4.5:1 or marks below 3:1")
			require.Empty(t, eval[[]string](p, clipped), "text that does not fit its box, or buttons too small for a finger")
			require.Empty(t, eval[[]string](p, unnamed), "parts that a screen reader can't name")
			if dir := os.Getenv("SCREENSHOTS"); dir != "" {
				picture, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, w.String()+".png"), picture, 0o600))
			}
		})
	}
}

// faint lists the texts whose contrast to what is behind them is below 4.5:1, and the coloured marks
// below 3:1 (WCAG 2, levels AA).
const faint = `(() => {
	const rgb = text => text.match(/[\d.]+/g).map(Number);
	const light = text => {
		const [r, g, b] = rgb(text).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
		return .2126 * r + .7152 * g + .0722 * b;
	};
	const ratio = (a, b) => { const [low, high] = [light(a), light(b)].sort((x, y) => x - y); return (high + .05) / (low + .05); };
	const behind = node => {
		for (; node; node = node.parentElement) {
			const color = getComputedStyle(node).backgroundColor;
			if (rgb(color)[3] !== 0) return color;
		}
		return "rgb(255, 255, 255)";
	};
	const bad = [];
	const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (texts.nextNode()) {
		const parent = texts.currentNode.parentElement;
		if (!texts.currentNode.data.trim() || parent.closest("noscript, title")) continue;
		const style = getComputedStyle(parent);
		const value = ratio(parent.closest("svg") ? style.fill : style.color, behind(parent));
		if (value < 4.5) bad.push(value.toFixed(2) + " " + texts.currentNode.data);
	}
	for (const mark of document.querySelectorAll(".swatch, .bar i, #chart rect")) {
		const style = getComputedStyle(mark);
		const value = ratio(mark.tagName === "rect" ? style.fill : style.backgroundColor, behind(mark.parentElement.closest("section")));
		if (value < 3) bad.push(value.toFixed(2) + " " + mark.outerHTML);
	}
	return bad;
})()`

// clipped lists elements whose content is wider than they are, and buttons too small for a finger.
const clipped = `(() => {
	const wide = [...document.querySelectorAll("main *")].filter(e => !e.closest("svg") && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0);
	const small = [...document.querySelectorAll("button")].filter(e => e.getBoundingClientRect().height < 24);
	return [...wide, ...small].map(e => e.outerHTML.slice(0, 100));
})()`

// unnamed lists what a screen reader would have to skip over.
const unnamed = `[
	...document.querySelectorAll("section:not([aria-labelledby]), svg:not([aria-label]), th:not([scope]), output:not([aria-label]), html:not([lang])"),
	...[...document.querySelectorAll("[aria-labelledby]")].filter(e => !document.getElementById(e.getAttribute("aria-labelledby"))),
	...[...document.querySelectorAll("button, th")].filter(e => !e.textContent.trim()),
].map(e => e.outerHTML.slice(0, 100))`
