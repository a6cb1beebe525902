// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"encoding/base64"
	"net/url"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/protocol"
)

func TestSecretsAreRedactedInEveryForm(t *testing.T) {
	t.Parallel()
	const secret = "s3cr?t+pass/w\u00f6rd~~"
	given := &protocol.HostInstructions{
		Instructions: []protocol.HostInstruction{
			{ID: "a", Command: []string{"install"}, Env: map[string]string{"PASSWORD": secret, "ODD": "one\x1btwo\x00three", "LINES": "first line\nsecond line"}},
			{ID: "b", Command: []string{"join", "--token", "K10abc::server:hush", "--registry-password=opensesame", "--token-file", "/etc/token"}},
			{ID: "c", Command: []string{"sh", "-c", `curl -H "Authorization: Bearer quietly" https://bob:whisper@example.com/v1; API_KEY='mumble' install; x 9f86d081884c7d659a2feaa0c55ad015`}},
		},
		Files: []protocol.HostFile{{Path: "/etc/a", Content: []byte("token: fileword-0123456789")}},
	}
	secrets := secretsOf(given)
	b64 := base64.StdEncoding.EncodeToString
	for name, output := range map[string]string{
		"as it is":                           secret,
		"with a colour in it":                secret[:3] + "\x1b" + secret[3:],
		"in base64":                          b64([]byte(secret)),
		"in base64, at another place":        b64([]byte("x" + secret + "y")),
		"in base64, at the third":            b64([]byte("u:" + secret)),
		"in base64 of URLs":                  base64.RawURLEncoding.EncodeToString([]byte(secret)),
		"in a URL":                           url.QueryEscape(secret),
		"a value with control characters":    "one\x1btwo\x00three",
		"that without them":                  "onetwothree",
		"a value of several lines in base64": b64([]byte("first line\nsecond line")),
		"the value of a flag":                "join --token K10abc::server:hush",
		"the value of a flag after =":        "got opensesame",
		"a header in a script":               "Bearer quietly",
		"a password in a URL":                "https://bob:whisper@example.com",
		"a variable in a script":             "API_KEY=mumble",
		"what looks random":                  "+ x 9f86d081884c7d659a2feaa0c55ad015",
		"a word of a file":                   "fileword-0123456789",
		"a word of a file in base64":         b64([]byte("fileword-0123456789")),
	} {
		got := report("before "+output+" after", secrets)
		if !strings.Contains(got, redacted) || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
			t.Errorf("%s: reported %q of %q", name, got, output)
		}
		for _, part := range []string{"s3cr", "czNjc", "hush", "sesame", "quietly", "whisper", "mumble", "9f86", "fileword"} {
			if strings.Contains(got, part) {
				t.Errorf("%s: reported %q, which has %q", name, got, part)
			}
		}
	}
	const harmless = "open /etc/token: no such file or directory; curl: (6) Could not resolve host; install failed"
	if got := report(harmless, secrets); got != harmless {
		t.Errorf("reported %q of what is no secret", got)
	}
}

func FuzzReport(f *testing.F) {
	f.Add("the value", "an output with the value in it")
	f.Add("a\x1bb\xffcd", "a\x1bb\xffcd")
	f.Fuzz(func(t *testing.T, value, output string) {
		given := &protocol.HostInstructions{Instructions: []protocol.HostInstruction{{ID: "a", Command: []string{"x", output}, Env: map[string]string{"V": value}}}}
		secrets := secretsOf(given)
		got := report(output+value+output, secrets)
		if plain(got) != got || len(got) > reportedBytes {
			t.Errorf("reported %q", got)
		}
		want := strings.TrimSpace(value)
		if len(plain(want)) >= shortestVariable && plain(want) == want && !strings.ContainsAny(want, "\n") && !strings.Contains(redacted, want) && strings.Contains(got, want) {
			t.Errorf("reported %q with the value %q", got, want)
		}
	})
}

func TestCommandsInheritProxiesAndInstallerVariables(t *testing.T) {
	for name, value := range map[string]string{"https_proxy": "http://bob:whisper@proxy.example.com:3128", "INSTALL_K3S_SKIP_DOWNLOAD": "true", "DROVER_SERVER": "https://hub.example.com"} {
		t.Setenv(name, value)
	}
	got := strings.Join(environment(protocol.HostInstruction{ID: "a", Env: map[string]string{"NO_PROXY": "x"}}), "\n") + "\n"
	for words, want := range map[string]bool{"\nhttps_proxy=http://bob:whisper@proxy": true, "\nINSTALL_K3S_SKIP_DOWNLOAD=true\n": true, "\nNO_PROXY=x\n": true, "DROVER_SERVER": false} {
		if strings.Contains(got, words) != want {
			t.Errorf("%q is in the environment: %t, want %t:\n%s", words, !want, want, got)
		}
	}
	if report := report("407 for bob:whisper", secretsOf(&protocol.HostInstructions{})); strings.Contains(report, "whisper") {
		t.Errorf("the proxy's password is reported: %s", report)
	}
}
