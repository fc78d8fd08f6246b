package waitroom

// Lines returns how many lines there are.
func (r *Room[R]) Lines() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		for ; l != nil; l = l.sibling {
			n++
		}
	}
	return n
}

// Fallback is the default of Config.Fallback.
var Fallback = fallback
