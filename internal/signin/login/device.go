// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/attempts"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/page"
	"github.com/drover-dev/drover/internal/signin/usercode"
)

// device shows the page for a user code. Without a code, the page is a form in which the user enters the code. With a
// code, it is the login page. The user approves the device by signing in.
func (p *Pages) device(w http.ResponseWriter, r *http.Request) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || len(query["user_code"]) > 1 || len(query.Get("user_code")) > oauth.MaxField {
		page.WriteError(w, http.StatusBadRequest, "The address is malformed.")
		return
	}
	typed := query.Get("user_code")
	if typed == "" {
		page.WriteDevice(w, http.StatusOK, "", true)
		return
	}
	keys := p.keys(w, r)
	if keys == nil {
		return
	}
	source := limit.Source(r.RemoteAddr)
	try := attempts.Attempt{User: source, Source: source}
	if wait := p.wrongCodes.Begin(try, p.Now()); wait > 0 {
		seconds := int((wait + time.Second - 1) / time.Second)
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
		page.WriteDevice(w, http.StatusTooManyRequests,
			fmt.Sprintf("Too many wrong codes. Try again in %d seconds.", seconds), true)
		return
	}
	code, ok := usercode.Parse(typed, p.Now(), keys.Sealing...)
	if !ok {
		page.WriteDevice(w, http.StatusNotFound, "The code is wrong or has expired. "+
			"Compare it with the one on the device, or start again there.", true)
		return
	}
	p.wrongCodes.Succeeded(try, p.Now())
	p.open(w, r, authorization{Device: code, Browser: bind(w, r), At: p.Now()})
}
