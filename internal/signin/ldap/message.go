// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"

	ber "github.com/go-asn1-ber/asn1-ber"
	goldap "github.com/go-ldap/ldap/v3"
)

// maxElements is the maximum number of elements in one message. The library allocates about 300 bytes for each element.
// The entry of a user in 20,000 groups has nearly that many elements.
const maxElements = 24 << 10

// counted is a connection that reads whole messages. It passes a message to the library only if the message does not
// contain too many elements.
type counted struct {
	net.Conn
	message bytes.Reader
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	if c.message.Len() == 0 {
		raw, err := readMessage(c.Conn)
		if err != nil {
			return 0, err
		}
		c.message.Reset(raw)
	}
	return c.message.Read(p)
}

// readMessage reads one message. LDAP messages have a definite length (RFC 4511, section 5.1).
func readMessage(from io.Reader) ([]byte, error) {
	head := make([]byte, 2, 8)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	if more := int(head[1] & 0x7f); head[1] > 0x7f && more >= 1 && more <= 4 {
		head = head[:2+more]
		if _, err := io.ReadFull(from, head[2:]); err != nil {
			return nil, err
		}
	}
	size, content, err := lengthOf(head)
	if err != nil {
		return nil, err
	}
	if size > maxPacket {
		return nil, fmt.Errorf("the server sent a message of %d bytes, more than %d", size, maxPacket)
	}
	raw := bytes.NewBuffer(head) // the size in the header may be wrong, so the buffer grows as bytes arrive
	if _, err := io.CopyN(raw, from, int64(size)); err != nil {
		return nil, err
	}
	room := maxElements
	return raw.Bytes(), count(raw.Bytes(), content, maxNesting, &room)
}

var errMessage = errors.New("the server sent a message that is not LDAP")

// lengthOf returns the length of an element's content and the offset of the content.
func lengthOf(raw []byte) (size, content int, err error) {
	if len(raw) < 2 || raw[0]&0x1f == 0x1f { // LDAP has no multi-byte tags
		return 0, 0, errMessage
	}
	if raw[1] <= 0x7f {
		return int(raw[1]), 2, nil
	}
	more := int(raw[1] & 0x7f)
	if more < 1 || more > 4 || len(raw) < 2+more {
		return 0, 0, errMessage
	}
	for _, b := range raw[2 : 2+more] {
		size = size<<8 | int(b)
	}
	return size, 2 + more, nil
}

// count counts an element and all elements that are nested in it.
func count(raw []byte, content, depth int, room *int) error {
	if *room--; *room < 0 || depth == 0 {
		return fmt.Errorf("the server sent a message of more than %d elements, or nested more than %d deep", maxElements,
			maxNesting)
	}
	if raw[0]&0x20 == 0 { // primitive
		return nil
	}
	for rest := raw[content:]; len(rest) > 0; {
		size, begin, err := lengthOf(rest)
		if err != nil || size > len(rest)-begin {
			return errMessage
		}
		if err := count(rest[:begin+size], begin, depth-1, room); err != nil {
			return err
		}
		rest = rest[begin+size:]
	}
	return nil
}

// oidStartTLS identifies the StartTLS request (RFC 4511, section 4.14.1).
const oidStartTLS = "1.3.6.1.4.1.1466.20037"

// startTLS asks the server to start TLS. The library's own function would bypass the limit on elements.
func startTLS(conn net.Conn) error {
	request := ber.Encode(ber.ClassUniversal, ber.TypeConstructed, ber.TagSequence, nil, "message")
	request.AppendChild(ber.NewInteger(ber.ClassUniversal, ber.TypePrimitive, ber.TagInteger, 1, "ID"))
	extended := ber.Encode(ber.ClassApplication, ber.TypeConstructed, goldap.ApplicationExtendedRequest, nil, "request")
	extended.AppendChild(ber.NewString(ber.ClassContext, ber.TypePrimitive, 0, oidStartTLS, "name"))
	request.AppendChild(extended)
	if _, err := conn.Write(request.Bytes()); err != nil {
		return goldap.NewError(goldap.ErrorNetwork, err)
	}
	raw, err := readMessage(conn)
	if err != nil {
		return goldap.NewError(goldap.ErrorNetwork, err)
	}
	answer, err := ber.DecodePacketErr(raw)
	if err != nil || len(answer.Children) < 2 || answer.Children[1].Tag != goldap.ApplicationExtendedResponse {
		return goldap.NewError(goldap.ErrorUnexpectedResponse, errMessage)
	}
	return goldap.GetLDAPError(answer)
}
