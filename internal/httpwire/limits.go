package httpwire

import (
	"fmt"
	"time"
)

// CheckLimits says which field of a Config of the package is negative, if one is.
func CheckLimits(pkg string, requestBytes, responseBytes int, wait, run time.Duration) error {
	for _, f := range [...]struct {
		name     string
		negative bool
		value    any
	}{
		{"MaxRequestBytes", requestBytes < 0, requestBytes},
		{"MaxResponseBytes", responseBytes < 0, responseBytes},
		{"Wait", wait < 0, wait},
		{"MaxRun", run < 0, run},
	} {
		if f.negative {
			return fmt.Errorf("%s: Config.%s is %v, want zero or more", pkg, f.name, f.value)
		}
	}
	return nil
}
