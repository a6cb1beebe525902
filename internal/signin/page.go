// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/drover-dev/drover/internal/signin/usercode"
)

// pageHTML is the login page. It has six places, which are filled with escaped text: html/template would make the manager a quarter larger.
//
//go:embed page.html
var pageHTML string

// deviceHTML is the page on which a user types the code of a device, or reads that it was approved.
//
//go:embed device.html
var deviceHTML string

const deviceForm = `<form method="get" action="/v1/auth/device">
<label for="user_code">Code on the device</label>
<input id="user_code" name="user_code" autocomplete="off" autocapitalize="characters" spellcheck="false" maxlength="20" required autofocus>
<button type="submit">Continue</button>
</form>`

// page is what one login page shows.
type page struct {
	request  string // sealed
	asks     string // who asks for what, in HTML
	user     string
	message  string
	redirect string   // where the form leads in the end
	forms    []string // providers that take a password
	links    []string // providers with a page of their own
}

// choice asks which provider a name and a password are for, if there are several.
func (p page) choice() string {
	if len(p.forms) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("<label for=\"provider\">Account</label>\n<select id=\"provider\" name=\"provider\">\n")
	for _, name := range append([]string{local}, p.forms...) {
		b.WriteString("<option>" + html.EscapeString(name) + "</option>\n")
	}
	b.WriteString("</select>\n")
	return b.String()
}

// others leads to the providers with a page of their own. These are links and no forms: the policy of the page need not name where a provider is.
func (p page) others() string {
	if len(p.links) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("<nav aria-label=\"Other ways to sign in\">\n")
	for _, name := range p.links {
		address := PathProvider + url.PathEscape(name) + "?" + url.Values{"request": {p.request}}.Encode()
		b.WriteString("<a href=\"" + html.EscapeString(address) + "\">Sign in with " + html.EscapeString(name) + "</a>\n")
	}
	b.WriteString("</nav>\n")
	return b.String()
}

// asks says who asks for what on the login page.
func (s *Server) asks(a authorization) string {
	switch {
	case a.Device != "":
		return `<p>A program on another device asks to act as you. It shows this code:</p>
<p class="code">` + html.EscapeString(usercode.Format(a.Device)) + `</p>
<p>Sign in only if you started that program yourself and see the same code there. If you were sent the code or this address, close the page: the sender would act as you.</p>`
	case a.Redirect == s.issuer+PathPage:
		return "<p>To look at your clusters in this browser.</p>"
	case a.Offline:
		return "<p>kubectl on this computer asks to act as you, for up to " + duration.HumanDuration(s.bounds.Lifetime) + ".</p>"
	}
	return "<p>kubectl on this computer asks to act as you.</p>"
}

// writeDevicePage writes a page of the login of a device, with the form for its code or without it.
func writeDevicePage(w http.ResponseWriter, code int, message string, form bool) {
	shown, fields := "", ""
	if form {
		fields = deviceForm
	}
	switch {
	case message != "" && code == http.StatusOK:
		shown = `<p role="status">` + html.EscapeString(message) + "</p>"
	case message != "":
		shown = `<p class="error" role="alert">` + html.EscapeString(message) + "</p>"
	}
	secure(w.Header(), "; style-src "+styleHash()+"; form-action 'self'")
	w.WriteHeader(code)
	_, _ = strings.NewReplacer("%STYLE%", style(), "%MESSAGE%", shown, "%FORM%", fields).WriteString(w, deviceHTML)
}

// style is that of all pages.
func style() string {
	_, rest, _ := strings.Cut(pageHTML, "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	return style
}

// styleHash lets browsers use the style of the page, and no other.
func styleHash() string {
	sum := sha256.Sum256([]byte(style()))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// write writes the page.
func (p page) write(w http.ResponseWriter, code int) {
	message := ""
	if p.message != "" {
		message = `<p class="error" role="alert">` + html.EscapeString(p.message) + "</p>"
	}
	secure(w.Header(), strings.TrimSpace("; style-src "+styleHash()+"; form-action 'self' "+formTarget(p.redirect)))
	w.WriteHeader(code)
	_, _ = strings.NewReplacer("%CHOICE%", p.choice(), "%LINKS%", p.others(), "%ASKS%", p.asks, "%ERROR%", message, "%REQUEST%", html.EscapeString(p.request), "%USER%", html.EscapeString(p.user)).WriteString(w, pageHTML)
}

// formTarget is the origin that the response to the form redirects to: browsers apply form-action to that, too. The hub's own is there already, and the policy has no
// form for IPv6 addresses.
func formTarget(redirect string) string {
	if redirect == "" || strings.HasPrefix(redirect, "https://") {
		return ""
	}
	u, err := url.Parse(redirect)
	if err != nil || strings.Contains(u.Host, "[") {
		return "http:"
	}
	return "http://" + u.Host
}

// writeError writes a page that says what is wrong, for what must not be redirected.
func writeError(w http.ResponseWriter, code int, message string) {
	secure(w.Header(), "")
	w.WriteHeader(code)
	_, _ = w.Write([]byte("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sign in to Drover</title></head>" +
		"<body><main><h1>Not signed in</h1><p role=\"alert\">" + html.EscapeString(message) + "</p></main></body></html>\n"))
}

// secure sets the header of a page: no script, no frame, nothing from elsewhere, not kept. "same-origin" lets browsers send Origin with the form.
func secure(h http.Header, more string) {
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; frame-ancestors 'none'"+more)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}
