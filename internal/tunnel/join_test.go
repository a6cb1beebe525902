// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// writesConn records each write.
type writesConn struct {
	net.Conn
	writes []string
	err    error
}

func (c *writesConn) Write(p []byte) (int, error) {
	c.writes = append(c.writes, string(p))
	return len(p), c.err
}

func (c *writesConn) SetWriteDeadline(time.Time) error { return nil }

// frames returns the bytes that write writes to a Framer.
func frames(t *testing.T, write func(*http2.Framer) error) string {
	t.Helper()
	var out bytes.Buffer
	if err := write(http2.NewFramer(&out, nil)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestHeaderLeavesTogetherWithTheBody(t *testing.T) {
	header := func(end bool, size int) string {
		return frames(t, func(f *http2.Framer) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, size), EndHeaders: true,
				EndStream: end})
		})
	}
	data := func(size int) string {
		return frames(t, func(f *http2.Framer) error { return f.WriteData(1, true, make([]byte, size)) })
	}
	other := frames(t, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) })
	const pause = "pause"
	for name, tc := range map[string]struct{ written, sent []string }{
		"a small body leaves with its header": {[]string{header(false, 50), data(500)},
			[]string{header(false, 50) + data(500)}},
		"a second response is joined like the first": {[]string{header(false, 50), data(5), header(false, 9), data(7)},
			[]string{header(false, 50) + data(5), header(false, 9) + data(7)}},
		"two headers leave together": {[]string{header(false, 50), header(false, 60)},
			[]string{header(false, 50) + header(false, 60)}},
		"a header without a body leaves at once": {[]string{header(true, 50)}, []string{header(true, 50)}},
		"a header without a timely body leaves alone": {[]string{header(false, 50), pause, data(5)},
			[]string{header(false, 50), data(5)}},
		"a large body is not copied": {[]string{header(false, 50), data(20 << 10)},
			[]string{header(false, 50), data(20 << 10)}},
		"a large header is not held back": {[]string{header(false, 2000)}, []string{header(false, 2000)}},
		"other frames leave at once":      {[]string{other}, []string{other}},
		"frames that come with a header are not held back": {[]string{other + header(false, 50)},
			[]string{other + header(false, 50)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &writesConn{}
				j := &joiner{Conn: conn, timeout: time.Second}
				for _, p := range tc.written {
					if p == pause {
						time.Sleep(2 * holdFor) // the clock of synctest
						continue
					}
					if n, err := j.Write([]byte(p)); err != nil || n != len(p) {
						t.Fatalf("wrote %d of %d bytes, %v", n, len(p), err)
					}
				}
				synctest.Wait()
				if !slices.Equal(conn.writes, tc.sent) {
					t.Errorf("sent %d messages of %d bytes, want %d of %d", len(conn.writes), len(strings.Join(conn.writes, "")),
						len(tc.sent), len(strings.Join(tc.sent, "")))
				}
			})
		})
	}
	t.Run("a late header that could not be written is the error of the next write", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			broken := errors.New("broken")
			j := &joiner{Conn: &writesConn{err: broken}, timeout: time.Second}
			if _, err := j.Write([]byte(header(false, 50))); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * holdFor) // the clock of synctest
			if _, err := j.Write([]byte(data(5))); !errors.Is(err, broken) {
				t.Errorf("the next write returned %v, want the error of the late one", err)
			}
		})
	})
}
