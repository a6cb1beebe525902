// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/drover-dev/drover/internal/request"
	"github.com/drover-dev/drover/internal/untrusted"
)

// redacted replaces values that must not be logged.
const redacted = "[redacted]"

// Maximum sizes of a line and its parts, in bytes.
const (
	maxName = 256
	maxURI  = 4 << 10
	maxBody = 32 << 10
	maxLine = 64 << 10
)

// openParameters returns the query parameters of the Kubernetes API whose values are logged. All other values are
// redacted, so that a token in an unknown parameter does not reach the log.
func openParameters() []string {
	return []string{
		"allowWatchBookmarks", "command", "container", "continue", "dryRun", "fieldManager", "fieldSelector",
		"fieldValidation", "follow",
		"force", "gracePeriodSeconds", "insecureSkipTLSVerifyBackend", "labelSelector", "limit", "limitBytes",
		"orphanDependents", "ports",
		"pretty", "previous", "propagationPolicy", "resourceVersion", "resourceVersionMatch", "sendInitialEvents",
		"sinceSeconds",
		"sinceTime", "stderr", "stdin", "stdout", "stream", "tailLines", "timeout", "timeoutSeconds", "timestamps", "tty",
		"watch",
	}
}

// openPaths returns the hub's own paths that are logged without redaction.
func openPaths() []string {
	return []string{"/v1/connect", "/v1/register", "/v1/cacerts", "/v1/auth/authorize", "/v1/auth/login", "/v1/auth/token",
		"/v1/auth/revoke", "/v1/auth/keys", "/v1/auth/device", "/v1/auth/tokens", "/v1/auth/sessions",
		"/metrics", "/"}
}

// jwt matches a JSON Web Token anywhere in text. It also matches a script token, even if the token's secret is
// truncated.
var jwt = regexp.MustCompile(
	`eyJ[A-Za-z0-9_-]{5,}(\.|%2[eE])[A-Za-z0-9_-]{5,}((\.|%2[eE])[A-Za-z0-9_-]*)?|token-[0-9a-f]{40}(:|%3[aA])[A-Za-z0-9_-]*`)

// ownPath matches the path of a script token or a session. The ID in the path is not secret.
var ownPath = regexp.MustCompile(`^/v1/auth/(tokens/[0-9a-f]{40}|sessions/[0-9a-f]{32})$`)

// URI returns the URI of a request with secrets redacted.
func URI(u *url.URL, info request.Info) string {
	path := redactPath(u.Path)
	if path != "/v1/import/"+redacted+".yaml" { // keep the brackets readable
		path = (&url.URL{Path: path}).EscapedPath()
	}
	if query := redactQuery(u.RawQuery, info.Subresource == "proxy" || info.Verb == "proxy"); query != "" {
		path += "?" + query
	}
	return clip(path, maxURI)
}

// redactPath returns a path with secrets redacted. The path must be decoded, because an encoded path could hide a
// secret. If the path is unknown and outside the Kubernetes APIs, only its first element is kept.
func redactPath(path string) string {
	if strings.Contains(path+"/", "/v1/import/") {
		return "/v1/import/" + redacted + ".yaml"
	}
	if strings.HasPrefix(path, "/k8s/clusters/") || path == "/k8s/local" || strings.HasPrefix(path, "/k8s/local/") {
		return jwt.ReplaceAllString(path, redacted)
	}
	if slices.Contains(openPaths(), path) || ownPath.MatchString(path) {
		return path
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if len(first) > 16 {
		return "/" + redacted
	}
	return "/" + first + "/" + redacted
}

// redactQuery keeps the names and the order of parameters. For requests that are proxied to a workload, it redacts all
// values, because workloads define their own parameters.
func redactQuery(raw string, workload bool) string {
	if raw == "" {
		return ""
	}
	var out strings.Builder
	for pair := range strings.SplitSeq(raw, "&") {
		if out.Len() > maxURI {
			break
		}
		if out.Len() > 0 {
			out.WriteByte('&')
		}
		rawName, rawValue, hasValue := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(rawName)
		if err != nil || workload || !slices.Contains(openParameters(), name) {
			out.WriteString(redactName(name, err == nil) + "=" + redacted)
			continue
		}
		out.WriteString(name)
		if value, err := url.QueryUnescape(rawValue); err != nil {
			out.WriteString("=" + redacted)
		} else if hasValue {
			out.WriteString("=" + url.QueryEscape(jwt.ReplaceAllString(value, redacted)))
		}
	}
	return out.String()
}

// redactName returns the name of an unknown parameter. If the name is too long or too unusual to be safe, it returns a
// placeholder.
func redactName(name string, decoded bool) string {
	plain := func(c rune) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '-' }
	if !decoded || len(name) > 24 || strings.ContainsFunc(name, func(c rune) bool { return !plain(c) }) {
		return redacted
	}
	return name
}

// Body returns the body of a request with secrets redacted. It returns nil if the body is too large or is not JSON, or
// if its secrets cannot be recognized reliably.
func Body(info request.Info, raw []byte) json.RawMessage {
	if len(raw) == 0 || len(raw) > maxBody || holdsSecrets(info) {
		return nil
	}
	if untrusted.Check(raw, untrusted.Large()) != nil {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil || decoder.More() {
		return nil
	}
	value, ok := redactValue(value)
	if !ok {
		return nil
	}
	out, err := json.Marshal(value)
	if err != nil || len(out) > maxBody {
		return nil
	}
	return out
}

// holdsSecrets reports whether the body of a request may contain secrets. If so, the body must not be logged.
func holdsSecrets(info request.Info) bool {
	return info.Resource == "" || info.Resource == "secrets" || info.Group == "authentication.k8s.io" ||
		info.Subresource == "token" || info.Subresource == "proxy" || info.Verb == "proxy"
}

// redactValue replaces values whose keys suggest a secret. It returns false if the value contains an object that must
// not be logged at all.
func redactValue(value any) (any, bool) {
	switch v := value.(type) {
	case map[string]any:
		return v, redactObject(v)
	case []any:
		for n := range v {
			var ok bool
			if v[n], ok = redactValue(v[n]); !ok {
				return nil, false
			}
		}
	case string:
		return redactText(v), true
	}
	return value, true
}

func redactObject(object map[string]any) bool {
	kind, _ := object["kind"].(string)
	if slices.Contains([]string{"Secret", "SecretList", "TokenRequest", "TokenReview"}, kind) {
		return false
	}
	for key, value := range object {
		if soundsSecret(key) && !refers(key, value) {
			object[key] = redacted
			continue
		}
		clean, ok := redactValue(value)
		if !ok {
			return false
		}
		object[key] = clean
	}
	for _, key := range []string{"name", "key", "path"} { // environment variables and patches
		if name, _ := object[key].(string); soundsSecret(name[strings.LastIndexByte(name, '/')+1:]) &&
			object["value"] != nil {
			object["value"] = redacted
		}
	}
	return true
}

// redactText returns a string with secrets redacted. It redacts JSON documents completely, because they may contain any
// secret.
func redactText(text string) string {
	if trimmed := strings.TrimSpace(text); strings.HasPrefix(trimmed, "{") || strings.HasPrefix(trimmed, "[") ||
		strings.Contains(text, "PRIVATE KEY") {
		return redacted
	}
	return jwt.ReplaceAllString(text, redacted)
}

// fold returns a key in lower case and without separators.
func fold(key string) string {
	return strings.Map(func(c rune) rune {
		if c == '_' || c == '-' || c == '.' {
			return -1
		}
		return unicode.ToLower(c)
	}, key)
}

// refers reports whether the value of a key that ends in "secret" or "secrets" only refers to Secrets, as in a volume
// or in imagePullSecrets. Such a value is an object or a list of objects, whose own keys are checked. A string is
// treated as a secret.
func refers(key string, value any) bool {
	folded := fold(key)
	if folded == "clientsecret" || !strings.HasSuffix(folded, "secret") && !strings.HasSuffix(folded, "secrets") {
		return false
	}
	switch v := value.(type) {
	case map[string]any:
		return true
	case []any:
		return !slices.ContainsFunc(v, func(one any) bool { _, object := one.(map[string]any); return !object })
	}
	return false
}

// soundsSecret reports whether a key suggests that its value is secret. A key for the name of a Secret does not suggest
// this.
func soundsSecret(key string) bool {
	folded := fold(key)
	for _, end := range []string{"secretname", "secretref", "secretkeyref", "keyref"} {
		if strings.HasSuffix(folded, end) {
			return false
		}
	}
	for _, word := range []string{"password", "passwd", "passphrase", "token", "secret", "credential", "privatekey",
		"apikey", "accesskey", "authorization", "cookie"} {
		if strings.Contains(folded, word) {
			return true
		}
	}
	return false
}
