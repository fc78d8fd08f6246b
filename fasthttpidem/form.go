package fasthttpidem

import (
	"crypto/sha256"
	"encoding/binary"
	"io"
	"maps"
	"mime/multipart"
	"slices"
)

// appendForm appends what makes two forms the same: the values and files by their names, whatever the boundary between
// the parts was. The order of parts with different names is lost when a form is parsed.
func appendForm(dst []byte, form *multipart.Form) ([]byte, error) {
	dst = binary.AppendUvarint(dst, uint64(len(form.Value)))
	for _, name := range slices.Sorted(maps.Keys(form.Value)) {
		dst = appendList(dst, name, form.Value[name])
	}
	for _, name := range slices.Sorted(maps.Keys(form.File)) {
		files := form.File[name]
		dst = binary.AppendUvarint(appendString(dst, name), uint64(len(files)))
		for _, file := range files {
			var err error
			if dst, err = appendFile(dst, file); err != nil {
				return nil, err
			}
		}
	}
	return dst, nil
}

// appendFile appends name and header of a file, and a digest of what is in it, which may be more than memory should hold.
func appendFile(dst []byte, header *multipart.FileHeader) ([]byte, error) {
	dst = binary.AppendUvarint(appendString(dst, header.Filename), uint64(len(header.Header)))
	for _, field := range slices.Sorted(maps.Keys(header.Header)) {
		dst = appendList(dst, field, header.Header[field])
	}
	file, err := header.Open()
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was read
	digest := sha256.New()
	if _, err := io.Copy(digest, file); err != nil {
		return nil, err
	}
	return digest.Sum(dst), nil
}

// appendList appends strings so that no other list looks the same.
func appendList(dst []byte, name string, values []string) []byte {
	dst = appendString(dst, name)
	dst = binary.AppendUvarint(dst, uint64(len(values)))
	for _, value := range values {
		dst = appendString(dst, value)
	}
	return dst
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}
