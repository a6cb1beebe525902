// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

// plainSize is the size, in bytes, up to which data is stored uncompressed. Compressing less data would save little.
const plainSize = 4 << 10

// Pack compresses data for a Secret if the data is larger than plainSize.
func Pack(raw []byte) ([]byte, error) {
	if len(raw) <= plainSize {
		return raw, nil
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Unpack reverses Pack. It returns at most limit bytes.
func Unpack(raw []byte, limit int64) ([]byte, error) {
	if !bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		return raw, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	if raw, err = io.ReadAll(io.LimitReader(r, limit)); err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	return raw, nil
}
