package watermillidem

import (
	"bytes"
	"encoding/gob"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A record is a message that a handler returned, as the store keeps it.
type record struct {
	UUID     string
	Metadata map[string]string
	Payload  []byte
}

// encode returns what the store keeps of the messages: nothing if there are none. It is gob and not JSON because it
// has to come back byte for byte. What can't be encoded, a nil message, must not look like a failure of the handler,
// which has run: only that it ran is recorded.
func encode(produced []*message.Message) (body []byte, truncated bool) {
	if len(produced) == 0 {
		return nil, false
	}
	list := make([]record, len(produced))
	for i, m := range produced {
		if m == nil {
			return nil, true
		}
		list[i] = record{m.UUID, m.Metadata, m.Payload}
	}
	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).Encode(list); err != nil {
		return nil, true
	}
	return buf.Bytes(), false
}

// decode makes new messages of what was recorded.
func decode(body []byte) ([]*message.Message, error) {
	if len(body) == 0 {
		return nil, nil
	}
	var list []record
	if err := gob.NewDecoder(bytes.NewReader(body)).Decode(&list); err != nil {
		return nil, fmt.Errorf("watermillidem: recorded messages: %w", err)
	}
	produced := make([]*message.Message, len(list))
	for i, r := range list {
		produced[i] = message.NewMessage(r.UUID, r.Payload)
		for k, v := range r.Metadata {
			produced[i].Metadata.Set(k, v)
		}
	}
	return produced, nil
}
