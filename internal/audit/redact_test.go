// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/drover-dev/drover/internal/request"
)

const someJWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"

const someID = "0123456789abcdef0123456789abcdef01234567"

func infoOf(method string, u *url.URL) request.Info {
	path := u.Path
	for _, prefix := range []string{"/k8s/clusters/team-a/prod", "/k8s/local"} {
		path = strings.TrimPrefix(path, prefix)
	}
	return request.Of(&http.Request{Method: method, URL: u, Header: http.Header{}}, path)
}

func TestURI(t *testing.T) {
	const prod = "/k8s/clusters/team-a/prod"
	for name, tt := range map[string]struct{ uri, want string }{
		"known parameters of the API stay": {prod + "/api/v1/pods?labelSelector=app%3Dweb&limit=500&watch=true",
			prod + "/api/v1/pods?labelSelector=app%3Dweb&limit=500&watch=true"},
		"a command stays": {prod + "/api/v1/namespaces/w/pods/a/exec?command=ls&command=-l&stdin",
			prod + "/api/v1/namespaces/w/pods/a/exec?command=ls&command=-l&stdin"},
		"a token is removed, whatever its name": {prod + "/api/v1/pods?token=s3cret&access_token=s3cret&X=s3cret",
			prod + "/api/v1/pods?token=[redacted]&access_token=[redacted]&X=[redacted]"},
		"an invalid name is removed": {prod + "/api/v1/pods?s3cret1=1&%zz=1",
			prod + "/api/v1/pods?[redacted]=[redacted]&[redacted]=[redacted]"},
		"a JWT is removed, wherever it is": {prod + "/api/v1/pods/" + someJWT + "?labelSelector=" + someJWT,
			prod + "/api/v1/pods/%5Bredacted%5D?labelSelector=%5Bredacted%5D"},
		"a token for scripts is removed": {prod + "/api/v1/pods/token-" + someID + ":c2VjcmV0?labelSelector=token-" + someID +
			"%3Ac2VjcmV0", prod + "/api/v1/pods/%5Bredacted%5D?labelSelector=%5Bredacted%5D"},
		"the ID of a token for scripts stays where it is revoked": {"/v1/auth/tokens/" + someID + "?a=b",
			"/v1/auth/tokens/" + someID + "?a=[redacted]"},
		"the ID of a session stays where it is ended": {"/v1/auth/sessions/" + someID[:32], "/v1/auth/sessions/" + someID[:32]},
		"a refresh token in its place is removed":     {"/v1/auth/sessions/refresh-" + someID[:32], "/v1/%5Bredacted%5D"},
		"anything else is removed there":              {"/v1/auth/tokens/token-" + someID + ":c2VjcmV0", "/v1/%5Bredacted%5D"},
		"parameters of a workload are removed": {prod + "/api/v1/namespaces/w/services/s/proxy/login?limit=s3cret",
			prod + "/api/v1/namespaces/w/services/s/proxy/login?limit=[redacted]"},
		"a join token is removed":          {"/v1/import/s3cret.yaml", "/v1/import/[redacted].yaml"},
		"an encoded join token is removed": {"/v1/%69mport/s3cret.yaml", "/v1/import/[redacted].yaml"},
		"a join token with a longer path is removed": {"/v1/import/s3cret.yaml/more?authImage=s3cret",
			"/v1/import/[redacted].yaml?authImage=[redacted]"},
		"a join token in a path that is not served is removed": {
			"/k8s/clusters/a/../v1/import/s3cret.yaml", "/v1/import/[redacted].yaml",
		},
		"a join token in a misspelt path is removed":      {"//v1//import/s3cret", "//%5Bredacted%5D"},
		"a join token in a path with capitals is removed": {"/v1/Import/s3cret", "/v1/%5Bredacted%5D"},
		"other paths of the hub stay":                     {"/v1/connect", "/v1/connect"},
		"a line break in a path does not start a new line": {prod + "/api/v1/pods/a%0A%7B%22user%22:1%7D",
			prod + "/api/v1/pods/a%0A%7B%22user%22:1%7D"},
	} {
		t.Run(name, func(t *testing.T) {
			u, err := url.ParseRequestURI(tt.uri)
			if err != nil {
				t.Fatal(err)
			}
			if got := URI(u, infoOf("GET", u)); got != tt.want {
				t.Errorf("%s\n got %s\nwant %s", tt.uri, got, tt.want)
			}
		})
	}
}

func TestBody(t *testing.T) {
	pods := request.Info{Path: "/", Verb: "create", Resource: "pods"}
	for name, tt := range map[string]struct {
		info       request.Info
		body, want string
	}{
		"a body stays":                        {pods, `{"kind":"Pod","n":1.10}`, `{"kind":"Pod","n":1.10}`},
		"the body of a Secret is not written": {request.Info{Resource: "secrets"}, `{"kind":"Secret"}`, ""},
		"a patch of a Secret is not written": {request.Info{Resource: "secrets", Verb: "patch"},
			`[{"op":"add","path":"/data/a","value":"eA=="}]`,
			""},
		"a Secret inside another object is not written": {pods, `{"kind":"Pod","items":[{"kind":"Secret","data":{}}]}`, ""},
		"a request for a token is not written": {request.Info{Resource: "serviceaccounts", Subresource: "token"},
			`{"spec":{}}`, ""},
		"a review of a token is not written": {request.Info{Group: "authentication.k8s.io", Resource: "tokenreviews"},
			`{"spec":{}}`, ""},
		"a body that is proxied to a workload is not written": {
			request.Info{Resource: "services", Subresource: "proxy"}, `{"a":"b"}`, "",
		},
		"a body that is not JSON is not written": {pods, "k8s\x00\x0a\x09", ""},
		"JSON with trailing text is not written": {pods, `{"a":1} token`, ""},
		"a password is removed": {pods, `{"spec":{"adminPassword":"s3cret"}}`,
			`{"spec":{"adminPassword":"[redacted]"}}`},
		"a reference to a Secret stays": {pods, `{"secretName":"a","imagePullSecrets":[{"name":"b"}]}`,
			`{"imagePullSecrets":[{"name":"b"}],"secretName":"a"}`},
		"the value of a variable with a suspicious name is removed": {pods,
			`{"env":[{"name":"DB_PASSWORD","value":"s3cret"},{"name":"A","value":"b"}]}`,
			`{"env":[{"name":"DB_PASSWORD","value":"[redacted]"},{"name":"A","value":"b"}]}`},
		"a reference in an object stays": {pods, `{"volumes":[{"secret":{"secretName":"a"}}],"secretRef":{"name":"b"}}`,
			`{"secretRef":{"name":"b"},"volumes":[{"secret":{"secretName":"a"}}]}`},
		"a string whose key is a secret is removed": {pods,
			`{"hmacSecret":"s3cret","data":{"OIDC_CLIENT_SECRET":"s3cret"},"secrets":["s3cret"]}`,
			`{"data":{"OIDC_CLIENT_SECRET":"[redacted]"},"hmacSecret":"[redacted]","secrets":"[redacted]"}`},
		"the value of a variable whose name ends in secret is removed": {pods,
			`{"env":[{"name":"JWT_SECRET","value":"s3cret"},{"name":"APP_SECRETS","value":"s3cret"}]}`,
			`{"env":[{"name":"JWT_SECRET","value":"[redacted]"},{"name":"APP_SECRETS","value":"[redacted]"}]}`},
		"the value of a patch whose path ends in secret is removed": {pods,
			`[{"op":"add","path":"/spec/webhookSecret","value":"s3cret"}]`,
			`[{"op":"add","path":"/spec/webhookSecret","value":"[redacted]"}]`},
		"a variable that refers to a Secret stays": {pods,
			`{"env":[{"name":"JWT_SECRET","valueFrom":{"secretKeyRef":{"name":"a","key":"b"}}}]}`,
			`{"env":[{"name":"JWT_SECRET","valueFrom":{"secretKeyRef":{"key":"b","name":"a"}}}]}`},
		"the value of a patch with a suspicious path is removed": {pods,
			`[{"op":"add","path":"/spec/token","value":"s3cret"}]`,
			`[{"op":"add","path":"/spec/token","value":"[redacted]"}]`},
		"the last applied configuration is removed": {pods,
			`{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"password\":1}"}}`,
			`{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"[redacted]"}}`},
		"a JWT is removed": {pods, `{"a":"Bearer ` + someJWT + `"}`, `{"a":"Bearer [redacted]"}`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := string(Body(tt.info, []byte(tt.body))); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// FuzzNoTokenIsWritten checks that no token reaches the log in any of the places where tokens are sent, whatever text
// is around it.
func FuzzNoTokenIsWritten(f *testing.F) {
	for _, around := range []string{"", "/", "%2f", "..", "a/b", "?", "&watch=1", ";", "import", "\n", "//"} {
		f.Add(around, around)
	}
	const token = "Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFy"
	f.Fuzz(func(t *testing.T, before, after string) {
		if strings.Contains(before, "&") {
			return // the token may also be the value of a parameter that is known to be harmless
		}
		for _, u := range []*url.URL{
			{Path: "/v1/import/" + before + token + after},
			{Path: before + "/v1/import/" + token + after},
			{Path: "/v1/import/" + token + ".yaml", RawQuery: before + "=" + token + after},
			{Path: "/v1/" + before + "/" + token},
			{Path: "/k8s/local/api/v1/pods", RawQuery: "watch=1&token=" + token + after},
			{Path: "/k8s/local/api/v1/pods", RawQuery: "access_token=" + before + token},
			{Path: "/k8s/local/api/v1/pods/" + someJWT},
			{Path: "/k8s/local/api/v1/namespaces/a/services/b/proxy/c", RawQuery: "limit=" + token + after},
		} {
			got := URI(u, infoOf("GET", u))
			if strings.Contains(got, token) || strings.Contains(got, someJWT) {
				t.Errorf("%q %q became %q, want no token in it", u.Path, u.RawQuery, got)
			}
			if len(got) > maxURI+8 || !utf8.ValidString(got) || strings.ContainsAny(got, "\r\n") {
				t.Errorf("%q does not fit on a line", got)
			}
		}
	})
}

// FuzzLine checks that any input from a caller becomes one line of JSON with a limited length.
func FuzzLine(f *testing.F) {
	f.Add("alice\n{}", "\u2028", []byte(`{"a":"b"}`))
	f.Add("\xff\x00", "\u202e", []byte("\x00"))
	f.Fuzz(func(t *testing.T, name, agent string, body []byte) {
		u := &url.URL{Path: name, RawQuery: agent}
		user := (&User{Name: name, Groups: []string{agent, name}, Extra: map[string][]string{name: {agent}}}).clipped()
		e := event{User: user, URI: URI(u, request.Info{Path: name}), sender: sender{UserAgent: clip(agent, maxName)},
			Body: Body(request.Info{Resource: "pods"}, body)}
		e.object = objectOf(request.Info{Resource: name, Name: agent})
		line := e.line()
		if bytes.Count(line, []byte("\n")) != 1 || line[len(line)-1] != '\n' || len(line) > maxLine || !utf8.Valid(line) {
			t.Errorf("got %q, want one line", line)
		}
		var back event
		if err := json.Unmarshal(line, &back); err != nil {
			t.Errorf("got no JSON: %v", err)
		}
	})
}

func TestLongLinesLoseTheirListsAndStayWithinTheLimit(t *testing.T) {
	many := make([]string, 1000)
	for n := range many {
		many[n] = strings.Repeat(`"`, 1000)
	}
	extra := map[string][]string{}
	for n := range 100 {
		extra[strings.Repeat("x", n)] = many
	}
	e := event{User: (&User{Name: "alice", Groups: many, Extra: extra}).clipped(), Body: json.RawMessage(`"b"`)}
	line := e.line()
	if len(line) > maxLine || !bytes.Contains(line, []byte(`"name":"alice"`)) {
		t.Errorf("got %d bytes, want the limit or less: %.200s", len(line), line)
	}
}
