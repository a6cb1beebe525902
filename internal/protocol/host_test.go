// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseHostInstructions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ given, want string }{
		"instructions with all fields pass": {`{"files":[{"path":"/etc/a","content":"YQ==","mode":"0640","uid":1}],"instructions":[{"id":"a.1-b","command":["x","y"],"env":{"A":"b"},"timeoutSeconds":5}],` +
			`"periodic":[{"id":"p","command":["x"],"periodSeconds":9}],"probes":[{"name":"api","url":"https://127.0.0.1:6443/readyz","caFile":"/ca"}]}`, ""},
		"empty ones pass":                            {`{}`, ""},
		"what is not JSON is refused":                {`nothing`, "not the JSON"},
		"a field that does not exist is refused":     {`{"script":"x"}`, "not the JSON"},
		"two documents are refused":                  {`{}{}`, "not the JSON"},
		"a relative path is refused":                 {`{"files":[{"path":"etc/a"}]}`, "files[0]: the path must be absolute"},
		"a path that leaves its folder is refused":   {`{"files":[{"path":"/etc/../a"}]}`, "absolute"},
		"the root is no file":                        {`{"files":[{"path":"/"}]}`, "absolute"},
		"a mode is octal":                            {`{"files":[{"path":"/a","mode":"0888"}]}`, "octal"},
		"a mode sets no special bits":                {`{"files":[{"path":"/a","mode":"04755"}]}`, "octal"},
		"an ID is no path":                           {`{"instructions":[{"id":"../a","command":["x"]}]}`, "the ID must"},
		"an ID does not begin with a dot":            {`{"instructions":[{"id":"..","command":["x"]}]}`, "the ID must"},
		"an ID is there once":                        {`{"instructions":[{"id":"a","command":["x"]}],"periodic":[{"id":"a","command":["x"]}]}`, "there twice"},
		"a command has a program":                    {`{"instructions":[{"id":"a","command":[]}]}`, "a command of 1"},
		"a timeout is bounded":                       {`{"instructions":[{"id":"a","command":["x"],"timeoutSeconds":90000}]}`, "times must"},
		"a variable has a name":                      {`{"instructions":[{"id":"a","command":["x"],"env":{"A=B":"c"}}]}`, "variable"},
		"a probe's URL has no password":              {`{"probes":[{"name":"a","url":"http://u:p@h/"}]}`, "without a user"},
		"a probe is HTTP":                            {`{"probes":[{"name":"a","url":"file:///etc/shadow"}]}`, "http or https"},
		"too many files are refused":                 {`{"files":[` + strings.Repeat(`{"path":"/a"},`, maxHostFiles) + `{"path":"/a"}]}`, "257 files"},
		"instructions that are too long are refused": {strings.Repeat(" ", MaxHostInstructions+1), "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseHostInstructions([]byte(tt.given))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func FuzzParseHostInstructions(f *testing.F) {
	f.Add([]byte(`{"files":[{"path":"/etc/a","content":"YQ=="}],"instructions":[{"id":"a","command":["x"]}],"probes":[{"name":"a","url":"http://h/"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		given, err := ParseHostInstructions(raw)
		if err != nil {
			return
		}
		again, err := json.Marshal(given)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > MaxHostInstructions { // escapes may make it longer
			return
		}
		same, err := ParseHostInstructions(again)
		if err != nil || same.Digest() != given.Digest() {
			t.Errorf("instructions that were accepted are not after they were stored: %v", err)
		}
	})
}

func TestWhatAHostReportsIsCutToSize(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 5000)
	p := HostProgress{Version: long, Owner: &long, Phase: HostPhase(long), Done: -1, Instruction: long, Message: long, Output: long, Failing: make([]string, 100)}
	p.Failing[0] = long
	p.Bound()
	if raw, _ := json.Marshal(p); len(raw) > 4<<10 || !utf8.Valid(raw) || len(p.Failing) > maxHostFailing || p.Done != 0 {
		t.Errorf("%d bytes, %d failing, %d done", len(raw), len(p.Failing), p.Done)
	}
}

func TestWhatAHostReportsHasNothingThatATerminalObeys(t *testing.T) {
	const bad = "a\x1b[2J\u202eb\x07\u2028c\xff"
	r := &Report{Host: &HostReport{
		Machine:  HostMachine{Hostname: bad, OS: bad, Architecture: bad, Kernel: bad, Addresses: []string{bad}, Roles: []string{bad}, Labels: []string{bad}, Taints: []string{bad}},
		Progress: HostProgress{Owner: new(bad), Phase: HostFailed, Instruction: bad, Message: bad, Output: bad + "\n\tx", Failing: []string{bad}},
	}}
	r.Bound()
	const good = "a[2Jbc"
	want := &HostReport{
		Machine:  HostMachine{Hostname: good, OS: good, Architecture: good, Kernel: good, Addresses: []string{good}, Roles: []string{good}, Labels: []string{good}, Taints: []string{good}},
		Progress: HostProgress{Owner: new(good), Phase: HostFailed, Instruction: good, Message: good, Output: good + "\n\tx", Failing: []string{good}},
	}
	if !reflect.DeepEqual(r.Host, want) {
		t.Errorf("it has %+v, want %+v", r.Host, want)
	}
}
