package fasthttpidem_test

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/textproto"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

// A part is a field of a form, or a file if it has the name of one.
type part struct {
	name, file, kind, content string
}

// order is a form with fields and files.
var order = []part{
	{name: "cents", content: "100"},
	{name: "to", content: "Jo"},
	{name: "to", content: "Al"},
	{name: "note", content: ""},
	{name: "receipt", file: "a.txt", kind: "text/plain", content: "receipt of a"},
	{name: "receipt", file: "b.txt", kind: "text/plain", content: "receipt of b"},
	{name: "scan", file: "a.png", kind: "image/png", content: "\x89PNG"},
}

// encode returns a form as a body and its type.
func encode(tb testing.TB, boundary string, form []part) (body, contentType string) {
	tb.Helper()
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	require.NoError(tb, w.SetBoundary(boundary))
	for _, p := range form {
		h := textproto.MIMEHeader{"Content-Disposition": {multipart.FileContentDisposition(p.name, p.file)}}
		if p.file == "" {
			h.Set("Content-Disposition", fmt.Sprintf("form-data; name=%q", p.name))
		}
		if p.kind != "" {
			h.Set("Content-Type", p.kind)
		}
		dst, err := w.CreatePart(h)
		require.NoError(tb, err)
		_, err = io.WriteString(dst, p.content)
		require.NoError(tb, err)
	}
	require.NoError(tb, w.Close())
	return buf.String(), w.FormDataContentType()
}

// with returns the order with one part replaced, or more after the last.
func with(i int, p ...part) []part {
	return slices.Concat(order[:min(i, len(order))], p, order[min(i+1, len(order)):])
}

// parsers are the ways in which a server has a form: as it comes in, by the middleware, or by a handler.
var parsers = map[string]func(*fasthttp.Server){
	"preparsed":   func(*fasthttp.Server) {},
	"as it comes": func(s *fasthttp.Server) { s.DisablePreParseMultipartForm = true },
	"streamed":    streamedBody,
}

// upload sends a form under the key.
func upload(tb testing.TB, s *testServer, key, boundary string, form []part) answer {
	tb.Helper()
	body, contentType := encode(tb, boundary, form)
	return post(tb, s, key, body, "Content-Type", contentType)
}

// formHandler answers with all that it finds in the form.
func formHandler(ctx *fasthttp.RequestCtx) {
	form, err := ctx.MultipartForm()
	if err != nil {
		ctx.Error(err.Error(), 400)
		return
	}
	_, _ = fmt.Fprintln(ctx, form.Value)
	for _, name := range []string{"receipt", "scan"} {
		for _, header := range form.File[name] {
			file, err := header.Open()
			if err != nil {
				panic(err)
			}
			content, err := io.ReadAll(file)
			if err != nil {
				panic(err)
			}
			_ = file.Close()
			_, _ = fmt.Fprintln(ctx, name, header.Filename, header.Header["Content-Type"], len(content), string(content[:min(20, len(content))]))
		}
	}
}

func TestFormsThatAreTheSame(t *testing.T) {
	for name, option := range parsers {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, formHandler)), option)
			want := upload(t, startServer(t, formHandler, option), "k", "b", order).body
			require.Contains(t, want, "cents:[100] note:[] to:[Jo Al]")
			require.Contains(t, want, "scan a.png [image/png] 4 \x89PNG")
			require.Equal(t, want, upload(t, server, "k", "boundary", order).body)
			requireReplayed(t, upload(t, server, "k", "boundary", order), 200, want)
			requireReplayed(t, upload(t, server, "k", "another-boundary", order), 200, want)
			body, contentType := encode(t, "b", order)
			requireReplayed(t, post(t, server, "k", "preamble\r\n"+body+"epilogue", "Content-Type", contentType), 200, want)
			require.EqualValues(t, 1, runs.Load())
		})
	}
}

// A form is a map when it is parsed, whose order is another each time.
func TestFormsWithManyFields(t *testing.T) {
	var form []part
	for i := range 10 {
		form = append(form, part{name: fmt.Sprint("field", i), content: fmt.Sprint(i)},
			part{name: fmt.Sprint("file", i), file: "f", kind: "text/plain", content: fmt.Sprint(i)})
	}
	for name, option := range parsers {
		t.Run(name, func(t *testing.T) {
			server := startServer(t, guard(t, fasthttpidem.Config{})(status(201, "made")), option)
			require.Equal(t, 201, upload(t, server, "k", "b0", form).status)
			for i := range 50 {
				requireReplayed(t, upload(t, server, "k", fmt.Sprint("b", i), form), 201, "made")
			}
		})
	}
}

// otherForms differ from the order.
var otherForms = map[string][]part{
	"value":                   with(0, part{name: "cents", content: "101"}),
	"value of nothing":        with(3, part{name: "note", content: " "}),
	"name":                    with(0, part{name: "Cents", content: "100"}),
	"order of values":         {order[0], order[2], order[1], order[3], order[4], order[5], order[6]},
	"order of files":          {order[0], order[1], order[2], order[3], order[5], order[4], order[6]},
	"value less":              with(0),
	"empty value less":        with(3),
	"value more":              with(99, part{name: "cents", content: "100"}),
	"file less":               with(6),
	"file more":               with(99, order[6]),
	"content of a file":       with(4, part{name: "receipt", file: "a.txt", kind: "text/plain", content: "receipt of c"}),
	"length of a file":        with(4, part{name: "receipt", file: "a.txt", kind: "text/plain", content: "receipt of a "}),
	"empty file":              with(4, part{name: "receipt", file: "a.txt", kind: "text/plain"}),
	"name of a file":          with(4, part{name: "receipt", file: "c.txt", kind: "text/plain", content: "receipt of a"}),
	"type of a file":          with(4, part{name: "receipt", file: "a.txt", kind: "text/html", content: "receipt of a"}),
	"no type of a file":       with(4, part{name: "receipt", file: "a.txt", content: "receipt of a"}),
	"field of a file":         with(4, part{name: "scan", file: "a.txt", kind: "text/plain", content: "receipt of a"}),
	"value instead of a file": with(4, part{name: "receipt", content: "receipt of a"}),
	"file instead of a value": with(0, part{name: "cents", file: "cents", kind: "text/plain", content: "100"}),
	"two values as one":       {order[0], {name: "to", content: "JoAl"}, order[3], order[4], order[5], order[6]},
	"nothing":                 nil,
}

func TestFormsThatDiffer(t *testing.T) {
	for name, option := range parsers {
		server := startServer(t, guard(t, fasthttpidem.Config{})(status(201, "made")), option)
		require.Equal(t, 201, upload(t, server, "k", "b", order).status)
		for what, form := range otherForms {
			t.Run(name+", "+what, func(t *testing.T) {
				requireProblem(t, upload(t, server, "k", "b", form), 422, httpidem.CodeKeyReused)
				require.Equal(t, 201, upload(t, server, `"`+what+`"`, "b", form).status)
				requireReplayed(t, upload(t, server, `"`+what+`"`, "c", form), 201, "made")
			})
		}
		requireProblem(t, post(t, server, "k", "", "Content-Type", "multipart/form-data; boundary=b"), 422, httpidem.CodeKeyReused)
		requireProblem(t, post(t, server, "k", "cents=100", "Content-Type", "application/x-www-form-urlencoded"), 422, httpidem.CodeKeyReused)
		requireReplayed(t, upload(t, server, "k", "b", order), 201, "made")
	}
}

// A large file is spooled to the disk, where the handler finds it.
func TestFormsWithALargeFile(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 18<<20/16) // fasthttp keeps 16 MiB in memory
	form := []part{{name: "a", content: "1"}, {name: "receipt", file: "large.bin", kind: "a/b", content: large}}
	other := []part{{name: "a", content: "1"}, {name: "receipt", file: "large.bin", kind: "a/b", content: large[:len(large)-1] + "!"}}
	server := startServer(t, guard(t, fasthttpidem.Config{MaxRequestBytes: 32 << 20})(formHandler), func(s *fasthttp.Server) { s.MaxRequestBodySize = 32 << 20 })
	a := upload(t, server, "k", "b", form)
	require.Contains(t, a.body, fmt.Sprint("receipt large.bin [a/b] ", len(large)))
	requireReplayed(t, upload(t, server, "k", "c", form), 200, a.body)
	requireProblem(t, upload(t, server, "k", "b", other), 422, httpidem.CodeKeyReused)
}

func TestFormsThatAreMalformed(t *testing.T) {
	for name, option := range parsers {
		for what, body := range map[string]string{
			"no form":     "no form",
			"no end":      "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1",
			"half a part": "--b\r\nContent-Disposition: form-data; name=\"a\"; filename=\"a\"\r\n\r\n1\r\n--",
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				var runs atomic.Int32
				server := startServer(t, guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
					_, err := ctx.MultipartForm()
					if err == nil {
						panic("there is no form")
					}
					ctx.SetStatusCode(422)
					ctx.SetBody(ctx.PostBody())
				})), option)
				a := post(t, server, "k", body, "Content-Type", "multipart/form-data; boundary=b")
				if name != "as it comes" { // the server has refused it
					require.Equal(t, 400, a.status)
					require.Zero(t, runs.Load())
					return
				}
				require.Equal(t, body, a.body)
				requireReplayed(t, post(t, server, "k", body, "Content-Type", "multipart/form-data; boundary=b"), 422, body)
				requireProblem(t, post(t, server, "k", body+"x", "Content-Type", "multipart/form-data; boundary=b"), 422, httpidem.CodeKeyReused)
			})
		}
	}
}

// A form is within the limit or not, however it is sent and parsed.
func TestFormsAndTheRequestLimit(t *testing.T) {
	for name, option := range parsers {
		for framing, frame := range framings {
			t.Run(name+", "+framing, func(t *testing.T) {
				body, contentType := encode(t, "b", order)
				for limit, want := range map[int]int{len(body): 200, len(body) - 1: 413} {
					var runs atomic.Int32
					server := startServer(t, guard(t, fasthttpidem.Config{MaxRequestBytes: limit})(counted(&runs, formHandler)), option)
					conn := server.dial(t)
					conn.sendRaw(frame("k", body, "Content-Type", contentType))
					require.Equal(t, want, conn.answer().status)
					require.EqualValues(t, map[int]int{200: 1, 413: 0}[want], runs.Load())
				}
			})
		}
	}
}

// A form in a coding takes no more memory than its limit, and is what it is without.
func TestFormsInACoding(t *testing.T) {
	for name, option := range parsers {
		t.Run(name, func(t *testing.T) {
			server := startServer(t, guard(t, fasthttpidem.Config{MaxRequestBytes: 100_000})(formHandler), option)
			body, contentType := encode(t, "b", order)
			send := func(key, body string) answer {
				return post(t, server, key, string(gzipped(body)), "Content-Type", contentType, "Content-Encoding", "gzip")
			}
			a := send("k", body)
			require.Contains(t, a.body, "cents:[100]")
			requireReplayed(t, send("k", body), 200, a.body)
			requireProblem(t, send("k", strings.Replace(body, "100", "101", 1)), 422, httpidem.CodeKeyReused)
		})
	}
	t.Run("that hides what is too large", func(t *testing.T) {
		body, contentType := encode(t, "b", with(0, part{name: "cents", content: strings.Repeat("0", 16<<20)}))
		server := startServer(t, guard(t, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
			ctx.SetBodyString("not a byte of it was asked for")
		}), func(s *fasthttp.Server) { s.DisablePreParseMultipartForm = true })
		bomb := string(gzipped(body))
		require.Less(t, len(bomb), 50_000)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		post(t, server, "k", bomb, "Content-Type", contentType, "Content-Encoding", "gzip")
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20), "the middleware has unpacked it")
	})
}

// A form that nobody has parsed is bytes for a server that streams: with another boundary it is another request.
func TestFormsThatAreStreamed(t *testing.T) {
	server := startServer(t, guard(t, fasthttpidem.Config{})(formHandler), streamedBody, parsers["as it comes"])
	a := upload(t, server, "k", "b", order)
	require.Contains(t, a.body, "cents:[100]")
	requireReplayed(t, upload(t, server, "k", "b", order), 200, a.body)
	for _, form := range otherForms {
		requireProblem(t, upload(t, server, "k", "b", form), 422, httpidem.CodeKeyReused)
	}
	requireProblem(t, upload(t, server, "k", "c", order), 422, httpidem.CodeKeyReused)
}

// A user's fingerprint gets no bytes of a form, and may look at the form itself.
func TestFingerprintOfAFormByTheUser(t *testing.T) {
	for _, name := range []string{"preparsed", "as it comes"} {
		t.Run(name, func(t *testing.T) {
			server := startServer(t, guard(t, fasthttpidem.Config{Fingerprint: func(ctx *fasthttp.RequestCtx, body []byte) (idem.Fingerprint, error) {
				if body != nil {
					panic("there are bytes of a form")
				}
				return idem.FingerprintOf(ctx.FormValue("cents")), nil
			}})(formHandler), parsers[name])
			a := upload(t, server, "k", "b", order)
			require.Equal(t, 200, a.status)
			requireReplayed(t, upload(t, server, "k", "c", with(6)), 200, a.body)
			requireProblem(t, upload(t, server, "k", "c", with(0)), 422, httpidem.CodeKeyReused)
		})
	}
}
