// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"

	ber "github.com/go-asn1-ber/asn1-ber"
)

// sequence is an element with a content.
func sequence(content []byte) []byte {
	head := binary.BigEndian.AppendUint32([]byte{0x30, 0x84}, uint32(len(content)))
	return append(head, content...)
}

// A directory is an upstream. The elements of its messages are counted before the library allocates memory for them.
func TestMessageOfManyElementsIsRefusedBeforeItIsDecoded(t *testing.T) {
	setBounds()
	deep := []byte{}
	for range 100 {
		deep = sequence(deep)
	}
	for name, tt := range map[string]struct {
		raw []byte
		ok  bool
	}{
		"a small one":                  {[]byte{0x30, 3, 0x02, 1, 1}, true},
		"as many as a user may have":   {sequence(bytes.Repeat([]byte{0x04, 2, 'a', 'b'}, 20_000)), true},
		"one that is full of them":     {sequence(bytes.Repeat([]byte{0x04, 0}, 2_000_000)), false},
		"one that is nested":           {deep, false},
		"one without a length":         {[]byte{0x30, 0x80, 0x04, 0, 0, 0}, false},
		"one that is too long":         {sequence(make([]byte, maxPacket+1)), false},
		"one that announces much":      {[]byte{0x30, 0x84, 0x00, 0x30, 0, 0}, false},
		"an element that is too long":  {[]byte{0x30, 3, 0x04, 5, 1}, false},
		"a tag of several bytes":       {[]byte{0x1f, 0x81, 1, 0}, false},
		"a length of too many bytes":   {[]byte{0x30, 0x85, 0, 0, 0, 0, 1, 0}, false},
		"an element within, cut short": {[]byte{0x30, 1, 0x04}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			raw, err := readMessage(bytes.NewReader(tt.raw))
			if err == nil {
				_, err = ber.ReadPacket(bytes.NewReader(raw))
			}
			runtime.ReadMemStats(&after)
			if (err == nil) != tt.ok {
				t.Errorf("got %v, want it accepted: %t", err, tt.ok)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 24<<20 {
				t.Errorf("it takes %d KiB of memory, want 24 MiB at most", n>>10)
			}
		})
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte{0x30, 3, 0x02, 1, 1})
	f.Add(sequence([]byte{0x04, 2, 'a', 'b', 0x30, 0}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		message, err := readMessage(bytes.NewReader(raw))
		if err == nil && !bytes.HasPrefix(raw, message) {
			t.Errorf("read %x of %x, want its beginning", message, raw)
		}
	})
}
