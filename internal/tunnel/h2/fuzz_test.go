// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// FuzzClientFrames lets a server send arbitrary frames to running requests. The requests end when the connection ends
// at the latest, and nothing panics.
func FuzzClientFrames(f *testing.F) {
	settings := "000000040000000000"
	// a response
	f.Add(unhex(settings + "000001010400000001" + "88" + "000003000100000001" + "616263"))
	// CONTINUATION and a reset
	f.Add(unhex(settings + "000001010000000001" + "88" + "000000090400000001" + "000004030000000003" + "00000008"))
	// windows
	f.Add(unhex(settings + "000004080000000001" + "7fffffff" + "000004080000000001" + "7fffffff" + "000000040100000000"))
	// GOAWAY
	f.Add(unhex(settings + "000008070000000000" + "0000000100000000" + "000001010500000001" + "88"))
	// padding
	f.Add(unhex(settings + "000001010400000001" + "88" + "000005000800000001" + "0361000000" + "000006040000000000" +
		"000400000000"))
	// a trailer
	f.Add(unhex("000006040000000000" + "000300000001" + "000001010400000001" + "88" + "000005010500000001" + "0001610162"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		client, err := New(near, config())
		if err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		for _, body := range []io.Reader{nil, strings.NewReader("hello")} {
			running.Go(func() {
				_, _ = whole(client.RoundTrip(request(t, http.MethodPost, "/", body)))
			})
		}
		_, _ = far.Write(wire)
		_ = far.Close()
		running.Wait()
		<-client.ended
		if n := client.openStreams(); n != 0 {
			t.Errorf("%d streams are left, want none", n)
		}
	})
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(s + ": " + err.Error())
	}
	return b
}
