// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package page renders the HTML pages for signing in.
package page

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/drover-dev/drover/internal/signin/usercode"
)

// loginHTML is the login page. Its placeholders are replaced with escaped text. html/template is not used, because it
// would increase the size of the manager by a quarter.
//
//go:embed login.html
var loginHTML string

// deviceHTML is the page where a user enters the code from a device. It also confirms that the device was approved.
//
//go:embed device.html
var deviceHTML string

// continueHTML is the page where a user continues a login after the provider has responded.
//
//go:embed continue.html
var continueHTML string

const deviceForm = `<form method="get" action="/v1/auth/device">
<label for="user_code">Code on the device</label>
<input id="user_code" name="user_code" autocomplete="off" autocapitalize="characters" spellcheck="false" maxlength="20" required autofocus>
<button type="submit">Continue</button>
</form>`

// Login is the content of a login page.
type Login struct {
	// Request is the sealed authorization request. Asks is HTML that names the client that made the request.
	Request, Asks string
	// User is the initial value of the user name field. Message explains why the last attempt failed.
	User, Message string
	// Redirect is the URL that the browser is redirected to after the login.
	Redirect string
	// Accounts lists the choices for the Account field. It is empty if the user has no choice. Links lists the
	// providers that have their own login page.
	Accounts []string
	Links    []Link
}

// Link points to a provider's login page.
type Link struct{ Provider, Address string }

func (p Login) accounts() string {
	return list("<label for=\"provider\">Account</label>\n<select id=\"provider\" name=\"provider\">\n", p.Accounts,
		func(name string) string { return "<option>" + html.EscapeString(name) + "</option>\n" }, "</select>\n")
}

// links returns links to the providers' login pages. It does not use forms, because they would require a form-action
// policy with the address of every provider.
func (p Login) links() string {
	return list("<nav aria-label=\"Other ways to sign in\">\n", p.Links, func(link Link) string {
		return "<a href=\"" + html.EscapeString(link.Address) + "\">Sign in with " +
			html.EscapeString(link.Provider) + "</a>\n"
	}, "</nav>\n")
}

// list returns the HTML of items between a start and an end, or nothing if there are no items.
func list[T any](start string, items []T, item func(T) string, end string) string {
	if len(items) == 0 {
		return ""
	}
	var b strings.Builder
	for _, i := range items {
		b.WriteString(item(i))
	}
	return start + b.String() + end
}

// AsksForDevice returns HTML that names the device that requests the user's rights.
func AsksForDevice(code string) string {
	return `<p>A program on another device asks to act as you. It shows this code:</p>
<p class="code">` + html.EscapeString(usercode.Format(code)) + `</p>
<p>Sign in only if you started that program yourself and see the same code there. ` +
		`If you were sent the code or this address, close the page: the sender would act as you.</p>`
}

// Write writes the page.
func (p Login) Write(w http.ResponseWriter, code int) {
	message := ""
	if p.Message != "" {
		message = `<p class="error" role="alert">` + html.EscapeString(p.Message) + "</p>"
	}
	secure(w.Header(), strings.TrimSpace("; style-src "+styleHash()+"; form-action 'self' "+formTarget(p.Redirect)))
	w.WriteHeader(code)
	_, _ = strings.NewReplacer("%CHOICE%", p.accounts(), "%LINKS%", p.links(), "%ASKS%", p.Asks, "%ERROR%", message,
		"%REQUEST%", html.EscapeString(p.Request), "%USER%", html.EscapeString(p.User)).WriteString(w, loginHTML)
}

// WriteDevice writes a page for a device login. If form is set, the page contains the form in which the user enters the
// code.
func WriteDevice(w http.ResponseWriter, code int, message string, form bool) {
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

// WriteContinue writes a page with a button that sends fields to a path on the hub. In response, the hub redirects the
// browser to the address in redirect.
func WriteContinue(w http.ResponseWriter, path string, fields url.Values, redirect string) {
	var b strings.Builder
	b.WriteString(`<form method="post" action="` + html.EscapeString(path) + "\">\n")
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		b.WriteString(`<input type="hidden" name="` + html.EscapeString(name) + `" value="` +
			html.EscapeString(fields.Get(name)) + "\">\n")
	}
	b.WriteString("<button type=\"submit\" autofocus>Continue</button>\n</form>")
	secure(w.Header(), strings.TrimSpace("; style-src "+styleHash()+"; form-action 'self' "+formTarget(redirect)))
	_, _ = strings.NewReplacer("%STYLE%", style(), "%FORM%", b.String()).WriteString(w, continueHTML)
}

// style returns the style sheet that all pages share.
func style() string {
	_, rest, _ := strings.Cut(loginHTML, "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	return style
}

// styleHash returns the hash of the style sheet for the Content-Security-Policy header. With the hash, browsers apply
// no other styles.
func styleHash() string {
	sum := sha256.Sum256([]byte(style()))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// formTarget returns the origin of a redirect for the form-action policy, because browsers also apply this policy to
// redirects. HTTPS redirects always return to the hub, whose origin the policy already contains. The policy has no
// syntax for IPv6 addresses.
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

// WriteError writes a page with an error that must not be sent to the client's redirect URI.
func WriteError(w http.ResponseWriter, code int, message string) {
	secure(w.Header(), "")
	w.WriteHeader(code)
	_, _ = w.Write([]byte("<!DOCTYPE html>\n" +
		"<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sign in to Drover</title></head>" +
		"<body><main><h1>Not signed in</h1><p role=\"alert\">" + html.EscapeString(message) +
		"</p></main></body></html>\n"))
}

// WriteUnavailable writes a page for a request that the hub cannot serve at present.
func WriteUnavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "5")
	WriteError(w, http.StatusServiceUnavailable, "The hub cannot do this at the moment. Try again.")
}

// secure sets the headers of a page. The headers forbid scripts, frames, content from other origins, and caching. With
// the referrer policy "same-origin", browsers send the Origin header with the form.
func secure(h http.Header, more string) {
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; frame-ancestors 'none'"+more)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}
