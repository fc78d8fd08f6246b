package fasthttpidem

import (
	"net/http"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/httpwire"
)

// replayedHeader marks an answer that was recorded before.
const replayedHeader = "Idempotency-Replayed"

// replay answers with a recorded response. Fields that are set already and not recorded stay.
func replay(resp *fasthttp.Response, rec *idem.Response) {
	h := &resp.Header
	h.SetNoDefaultContentType(true) // a record without a type is of a response without one
	trailers := setFields(h, string(rec.Header))
	h.Set(replayedHeader, "true")
	resp.SetStatusCode(rec.Status)
	resp.SetBody(rec.Body)
	setTrailers(h, trailers)
}

// setFields sets in h the fields that a record begins with, up to an empty line or its end, and returns what follows.
func setFields(h *fasthttp.ResponseHeader, block string) (rest string) {
	last := ""
	for block != "" {
		line, after, _ := strings.Cut(block, "\r\n")
		block = after
		if line == "" {
			break
		}
		last = setLine(h, line, last, false)
	}
	return block
}

// setTrailers announces and sets the trailers of a block.
func setTrailers(h *fasthttp.ResponseHeader, block string) {
	last := ""
	for line := range strings.SplitSeq(block, "\r\n") {
		if line != "" {
			last = setLine(h, line, last, true)
		}
	}
}

// setLine sets what a line says, and returns its name. last is that of the line before: the first of a name replaces what
// is there under it.
func setLine(h *fasthttp.ResponseHeader, line, last string, isTrailer bool) (name string) {
	name, value, ok := httpwire.CutLine(line)
	if !ok {
		name = line
	}
	bare, early := strings.CutPrefix(name, http.TrailerPrefix) // a trailer of net/http's that was not announced
	if name != last {
		h.Del(bare)
	}
	if ok && (!isTrailer && !early || h.AddTrailer(bare) == nil) {
		h.Add(bare, value)
	}
	return name
}
