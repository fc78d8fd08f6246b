package httpwire

import "fmt"

// What answers say in detail where their code alone would not do.
const (
	ReadTooEarly = "The server has read the body too early to tell this request from another. Its set-up is wrong, not the request."
	KeyTooLong   = "The server's store does not take a key of this length, or the scope that the server puts it in."
	NotRecorded  = "The request was run, but its response could not be recorded."
)

// TooLarge is the detail of a request whose body has more than limit bytes.
func TooLarge(limit int64) string {
	return fmt.Sprintf("The body of the request has more than %d bytes.", limit)
}
