// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// deviceCookie says who has signed in with a browser. It proves nothing but that: who guesses a user's password elsewhere does not slow down the user here. It comes with
// answers of providers too, whose pages send the browser here.
const deviceCookie = "__Host-drover-device"

// deviceLifetime is that of the cookie. It ends earlier with the key that sealed it.
const deviceLifetime = 30 * 24 * time.Hour

// device is what the cookie holds. It is sealed. UID is that of the User, or of the provider of an account: another of the same name has signed in nowhere yet.
type device struct {
	ID   string    `json:"i"`
	User string    `json:"u"`
	UID  types.UID `json:"d"`
}

// deviceOf returns the ID of the browser if that user has signed in with it before, else "".
func deviceOf(r *http.Request, current *loaded, user string, uid types.UID) string {
	var d device
	cookie, err := r.Cookie(deviceCookie)
	if err != nil || current.sealer.Open(purposeDevice, cookie.Value, &d) != nil || d.User != user || d.UID != uid || uid == "" {
		return ""
	}
	return d.ID
}

// remember gives the browser the cookie, and reports whether the response can go on.
func (s *Server) remember(w http.ResponseWriter, current *loaded, d device) bool {
	sealed, err := current.sealer.Seal(purposeDevice, d)
	if err != nil {
		s.unavailable(w, err)
		return false
	}
	http.SetCookie(w, &http.Cookie{
		Name: deviceCookie, Value: sealed, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: int(deviceLifetime.Seconds()),
	})
	return true
}

// randomID returns 128 random bits in hexadecimal.
func randomID() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}
