// Package progress shows on a terminal how far a program is.
package progress

import (
	"fmt"
	"io"
	"os"
	"time"
)

// Show animates line on w until stop is called, but only on a terminal: a pipe or a file must not be filled with
// escape codes.
func Show(w io.Writer, line func() string) (stop func()) {
	if !IsTerminal(w) {
		return func() {}
	}
	return animate(w, line)
}

// animate rewrites one line on w with what line returns, ten times a second, until stop is called,
// which wipes it.
func animate(w io.Writer, line func() string) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer fmt.Fprint(w, "\r\x1b[K")
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			fmt.Fprintf(w, "\r%s\x1b[K", line())
			select {
			case <-tick.C:
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// IsTerminal tells whether w is a terminal that understands escape codes. The null device is taken for one
// as well, which does no harm.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
