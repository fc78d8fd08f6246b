package fasthttpidem

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/textproto"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzForm: two forms have the same bytes if they have the same fields and files, and only then. The forms are made of
// the parts of one input, so that they are much alike.
func FuzzForm(f *testing.F) {
	f.Add([]byte{0, 0, 0})
	f.Add([]byte{0, 0, 1, 4, 2, 3, 1, 1, 1, 4, 6, 3, 0, 0, 1, 5, 2, 3})
	f.Add([]byte{3, 1, 2, 3, 2, 1, 7, 9, 2, 7, 9, 1})
	f.Add([]byte{0, 0, 1, 0, 0, 2, 0, 1, 3, 0, 0, 1, 0, 1, 2, 0, 1, 3}) // a=a&a=b&b=ab and a=a&b=b&b=ab
	f.Fuzz(func(t *testing.T, program []byte) {
		program = program[:min(len(program), 24)]
		byBytes, byModel := map[string]string{}, map[string]string{}
		for i := range len(program)/3 + 1 {
			for _, piece := range [][]byte{program[:3*i], program[3*i:]} {
				form := formOf(t, piece)
				got, err := appendForm([]byte("before"), form)
				require.NoError(t, err)
				again, err := appendForm([]byte("before"), form)
				require.NoError(t, err)
				require.Equal(t, got, again, "one form has one meaning, which does not depend on the order of a map")
				want := modelOf(t, form)
				if other, found := byBytes[string(got)]; found {
					require.Equal(t, want, other, "two forms with the same bytes")
				}
				if other, found := byModel[want]; found {
					require.Equal(t, other, string(got), "one form with different bytes")
				}
				byBytes[string(got)], byModel[want] = want, string(got)
			}
		}
	})
}

// formOf returns a form: three bytes are a part.
func formOf(t *testing.T, program []byte) *multipart.Form {
	t.Helper()
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	texts := []string{"", "a", "b", "ab", "\x01a", "\x00", "a\x01\x01b", "\x01"}
	for ; len(program) >= 3; program = program[3:] {
		kind, name, content := program[0], []string{"a", "b", "ab", "aa"}[program[1]%4], texts[program[2]%8]
		h := textproto.MIMEHeader{"Content-Disposition": {fmt.Sprintf("form-data; name=%q", name)}}
		if kind%2 == 1 {
			h.Set("Content-Disposition", fmt.Sprintf("form-data; name=%q; filename=%q", name, []string{"a", "b", "ab", "aa"}[kind/2%4]))
		}
		for range kind / 8 % 4 {
			h.Add("X-"+name, texts[program[1]/4%4])
		}
		dst, err := w.CreatePart(h)
		require.NoError(t, err)
		_, err = io.WriteString(dst, content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	form, err := multipart.NewReader(&buf, w.Boundary()).ReadForm(1 << 20)
	require.NoError(t, err)
	return form
}

// modelOf returns all of a form as text, with quotes around what is the form's, in an order of its own.
func modelOf(t *testing.T, form *multipart.Form) string {
	t.Helper()
	files := map[string][]string{}
	for name, headers := range form.File {
		for _, header := range headers {
			file, err := header.Open()
			require.NoError(t, err)
			content, err := io.ReadAll(file)
			require.NoError(t, err)
			require.NoError(t, file.Close())
			files[name] = append(files[name], fmt.Sprintf("%q %q %q", header.Filename, map[string][]string(header.Header), content))
		}
	}
	return fmt.Sprintf("%q %q", form.Value, files)
}
