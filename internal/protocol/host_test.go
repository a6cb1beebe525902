// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestParseHostInstructions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ given, want string }{
		"instructions with all fields pass": {`{"files":[{"path":"/etc/a","content":"YQ==","mode":"0640","uid":1}],` +
			`"instructions":[{"id":"a.1-b","command":["x","y"],"env":{"A":"b"},"timeoutSeconds":5}],` +
			`"periodic":[{"id":"p","command":["x"],"periodSeconds":9}],` +
			`"probes":[{"name":"api","url":"https://127.0.0.1:6443/readyz","caFile":"/ca"}]}`, ""},
		"empty instructions pass":                {`{}`, ""},
		"text that is not JSON is refused":       {`nothing`, "not valid JSON"},
		"a field that does not exist is refused": {`{"script":"x"}`, "not valid JSON"},
		"two documents are refused":              {`{}{}`, "not valid JSON"},
		"a relative path is refused": {
			`{"files":[{"path":"etc/a"}]}`, "files[0]: the path must be absolute",
		},
		"a path that leaves its directory is refused": {`{"files":[{"path":"/etc/../a"}]}`, "absolute"},
		"the root is not a file":                      {`{"files":[{"path":"/"}]}`, "absolute"},
		"a mode must be octal":                        {`{"files":[{"path":"/a","mode":"0888"}]}`, "octal"},
		"a mode must not set special bits":            {`{"files":[{"path":"/a","mode":"04755"}]}`, "octal"},
		"an ID must not be a path":                    {`{"instructions":[{"id":"../a","command":["x"]}]}`, "the ID must"},
		"an ID must not begin with a dot":             {`{"instructions":[{"id":"..","command":["x"]}]}`, "the ID must"},
		"an ID must be unique": {
			`{"instructions":[{"id":"a","command":["x"]}],"periodic":[{"id":"a","command":["x"]}]}`, "occurs twice",
		},
		"a command must have a program": {
			`{"instructions":[{"id":"a","command":[]}]}`, "the command must have 1",
		},
		"a timeout has a limit": {
			`{"instructions":[{"id":"a","command":["x"],"timeoutSeconds":90000}]}`, "times must",
		},
		"a variable must have a valid name": {
			`{"instructions":[{"id":"a","command":["x"],"env":{"A=B":"c"}}]}`, "variable",
		},
		"a probe's URL must not have a password": {`{"probes":[{"name":"a","url":"http://u:p@h/"}]}`, "without a user"},
		"a probe must use HTTP": {
			`{"probes":[{"name":"a","url":"file:///etc/shadow"}]}`, "http or https",
		},
		"too many files are refused": {
			`{"files":[` + strings.Repeat(`{"path":"/a"},`, maxHostFiles) + `{"path":"/a"}]}`, "257 files",
		},
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
	f.Add([]byte(`{"files":[{"path":"/etc/a","content":"YQ=="}],"instructions":[{"id":"a","command":["x"]}],` +
		`"probes":[{"name":"a","url":"http://h/"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		given, err := ParseHostInstructions(raw)
		if err != nil {
			return
		}
		again, err := json.Marshal(given)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > MaxHostInstructions { // escapes may make the JSON longer
			return
		}
		same, err := ParseHostInstructions(again)
		if err != nil || same.Digest() != given.Digest() {
			t.Errorf("accepted instructions were refused after storing them: %v", err)
		}
	})
}

// fill sets all fields of a value: texts, numbers, and lists of n texts.
func fill(v reflect.Value, text string, number int64, n int) {
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field, text, number, n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text, number, n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(v.Index(i), text, number, n)
		}
	case reflect.String:
		v.SetString(text)
	case reflect.Int32, reflect.Int64:
		v.SetInt(number)
	default:
		panic("fill needs a case for " + v.Type().String())
	}
}

// TestHostReportKeepsItsWireFormat notices changes to types of the API that are part of the report. Hubs and agents of
// other versions rely on the names, and whatever is added can be sent by an agent that is not trusted.
func TestHostReportKeepsItsWireFormat(t *testing.T) {
	t.Parallel()
	full := HostReport{}
	fill(reflect.ValueOf(&full).Elem(), "x", 1, 1)
	for _, tt := range []struct {
		report HostReport
		want   string
	}{
		{full, `{"machine":{"hostname":"x","os":"x","architecture":"x","kernel":"x","cpus":1,"addresses":["x"],` +
			`"roles":["x"],"labels":["x"],"taints":["x"],"memoryMiB":1},"progress":{"version":"x","done":1,"total":1,` +
			`"instruction":"x","output":"x","failing":["x"],"owner":"x","checkpoint":"x","phase":"x","message":"x"}}`},
		{HostReport{}, `{"machine":{},"progress":{"done":0,"total":0}}`},
	} {
		if got, err := json.Marshal(tt.report); err != nil || string(got) != tt.want {
			t.Errorf("got %s (%v), want %s", got, err, tt.want)
		}
	}
}

func TestHostReportIsTrimmedToItsLimits(t *testing.T) {
	t.Parallel()
	report := HostReport{}
	fill(reflect.ValueOf(&report).Elem(), strings.Repeat("é", 5000), -1, 100)
	report.Bound()
	var check func(name string, v reflect.Value)
	check = func(name string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for field, of := range v.Fields() {
				check(name+"."+field.Name, of)
			}
		case reflect.Pointer:
			check(name, v.Elem())
		case reflect.Slice:
			if v.Len() > 32 {
				t.Errorf("%s has %d items, want at most 32", name, v.Len())
			}
			check(name, v.Index(0))
		case reflect.String:
			if len(v.String()) > maxHostOutput || !utf8.ValidString(v.String()) {
				t.Errorf("%s has %d bytes, want at most %d of valid UTF-8", name, v.Len(), maxHostOutput)
			}
		default:
			if v.Int() < 0 {
				t.Errorf("%s is %d, want it not to be negative", name, v.Int())
			}
		}
	}
	check("report", reflect.ValueOf(report))
	if raw, _ := json.Marshal(report.Progress); len(raw) > 5<<10 || len(report.Progress.Failing) > maxHostFailing {
		t.Errorf("the progress has %d bytes and %d failing probes, want at most 5120 and %d", len(raw),
			len(report.Progress.Failing), maxHostFailing)
	}
}

func TestHostReportHasNoControlCharacters(t *testing.T) {
	const bad = "a\x1b[2J\u202eb\x07\u2028c\xff"
	r := &Report{Host: &HostReport{
		Machine: HostMachine{HostProperties: v1.HostProperties{
			Hostname: bad, OS: bad, Architecture: bad, Kernel: bad, Addresses: []string{bad},
			Roles: []string{bad}, Labels: []string{bad}, Taints: []string{bad},
		}},
		Progress: HostProgress{
			HostProgress: v1.HostProgress{Instruction: bad, Output: bad + "\n\tx", Failing: []string{bad}},
			Owner:        new(bad), Phase: HostFailed, Message: bad,
		},
	}}
	r.Bound()
	const good = "a[2Jbc"
	want := &HostReport{
		Machine: HostMachine{HostProperties: v1.HostProperties{
			Hostname: good, OS: good, Architecture: good, Kernel: good, Addresses: []string{good},
			Roles: []string{good}, Labels: []string{good}, Taints: []string{good},
		}},
		Progress: HostProgress{
			HostProgress: v1.HostProgress{Instruction: good, Output: good + "\n\tx", Failing: []string{good}},
			Owner:        new(good), Phase: HostFailed, Message: good,
		},
	}
	if !reflect.DeepEqual(r.Host, want) {
		t.Errorf("got %+v, want %+v", r.Host, want)
	}
}
