package engine

import (
	"fmt"
	"strconv"
)

// values hands the values of revisions to each, in any order, leaving out those that are not there.
func (f *file) values(revisions []int64, each func(revision int64, value []byte)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	rows, err := f.read.QueryContext(background, list(revisions))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var revision int64
		var value owned
		if err := rows.Scan(&revision, &value); err != nil {
			return err
		}
		each(revision, value)
	}
	return rows.Err()
}

// owned is a value as the driver made it: it makes a new one for each row, so that none has to be copied once more. A test
// holds it to that.
type owned []byte

func (o *owned) Scan(value any) error {
	switch v := value.(type) {
	case []byte:
		*o = v
	case string: // written as text, by SQL
		*o = []byte(v)
	default:
		return fmt.Errorf("the value is a %T", value)
	}
	return nil
}

// list is revisions as a JSON array.
func list(revisions []int64) string {
	text := []byte{'['}
	for i, r := range revisions {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, r, 10)
	}
	return string(append(text, ']'))
}
